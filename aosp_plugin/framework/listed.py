"""ListedDevices: a backend that only needs a function which lists device nodes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from aosp_plugin.framework.backend import Backend, ContainerEdits, Device, DeviceNode, Found, Mount


class ListedDevice(NamedTuple):
    """A device node of the host, and how containers get it."""

    path: str
    """Absolute path on the host; the container gets the node at the same path."""
    slots: int = 1
    """How many containers may have the device at the same time. Each slot is advertised as a device of its own."""
    reason: str = ""
    """Why the device is unhealthy, as one word such as ``overheated``; empty if it is healthy."""
    permissions: str = "rw"
    """One or more of r, w and m."""
    mounts: Sequence[Mount] = ()
    """Bind mounts that a container gets together with the device."""
    attributes: Mapping[str, bool | int | str] = MappingProxyType({})
    """The attributes by which users can select the device, for DRA; see ``Backend.attributes``."""


@dataclass(frozen=True)
class FoundListed(Found):
    """The listed devices of one scan."""

    by_id: Mapping[str, ListedDevice] = field(default_factory=dict)
    """The listed device of each slot."""


class ListedDevices(Backend[FoundListed]):
    """The device nodes that a function returns.

    **IDs.** A device's ID is its path below /dev with dashes for slashes: ``/dev/dri/renderD128`` is
    ``dri-renderD128``. With several slots, a number is added: ``/dev/kvm`` with 100 slots is ``kvm::0`` to ``kvm::99``.
    Of two devices with the same ID, the framework skips the second one; the same goes for IDs that the kubelet does not
    support (over 63 characters, not printable).

    **Health.** A device with a ``reason`` is advertised as Unhealthy. A device that is no longer listed is removed.
    """

    def __init__(
        self,
        resource_name: str,
        list_devices: Callable[[], Iterable[str | ListedDevice]],
        *,
        directories: Iterable[str] = ("/dev",),
    ) -> None:
        """Serve what ``list_devices`` returns: paths, or ListedDevice entries.

        ``list_devices`` runs in a worker thread, at least once a minute and when files are created, removed or renamed
        in ``directories`` (not in their subdirectories). It may raise OSError or BackendError; any other error ends the
        plugin.
        """
        self.resource_name = resource_name
        self._list_devices = list_devices
        self._directories = frozenset(directories)

    def scan(self) -> FoundListed:
        """List the devices. Raises what ``list_devices`` raises."""
        devices = [ListedDevice(each) if isinstance(each, str) else each for each in self._list_devices()]
        slots = [(device_id, device) for device in devices for device_id in slot_ids(device)]
        return FoundListed(
            [Device(device_id, device.reason) for device_id, device in slots],
            self._directories,
            by_id=dict(reversed(slots)),  # of several devices with an ID, the first one is advertised
        )

    def attributes(self, found: FoundListed, device_id: str) -> Mapping[str, bool | int | str]:
        """Return the attributes of a listed device."""
        return found.by_id[device_id].attributes

    def allocate(self, found: FoundListed, ids: Sequence[str]) -> ContainerEdits:
        """Return each device node, at its own path, and its mounts."""
        by_id = found.by_id
        allocated = {by_id[device_id].path: by_id[device_id] for device_id in ids}.values()
        return ContainerEdits(
            devices=[DeviceNode(device.path, device.path, device.permissions) for device in allocated],
            mounts=list(dict.fromkeys(mount for device in allocated for mount in device.mounts)),
        )


def slot_ids(device: ListedDevice) -> list[str]:
    """Return the IDs of the slots of a device."""
    name = device.path.removeprefix("/dev/").strip("/").replace("/", "-")
    return [name] if device.slots == 1 else [f"{name}::{slot}" for slot in range(device.slots)]
