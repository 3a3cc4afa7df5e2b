"""ListedDevices: a backend that only needs a function which lists device nodes."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.devices import ContainerEdits, Device, DeviceNode, Mount
from aosp_plugin.framework.errors import UnhealthyDeviceError, UnknownDeviceError

MISSING = "missing"
"""The reason of a device that is no longer listed."""


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


class ListedDevices(Backend):
    """The device nodes that a function returns.

    **IDs.** A device's ID is its path below /dev with dashes for slashes: ``/dev/dri/renderD128`` is
    ``dri-renderD128``. With several slots, a number is added: ``/dev/kvm`` with 100 slots is ``kvm::0`` to ``kvm::99``.
    Of two devices with the same ID, the framework skips the second one; the same goes for IDs that the kubelet does not
    support (over 63 characters, not printable).

    **Health.** A device with a ``reason`` is advertised as Unhealthy. A device that is no longer listed is Unhealthy
    with the reason ``missing`` until it is listed again or ``missing_device_ttl`` is over; then it is removed.
    """

    def __init__(
        self,
        resource_name: str,
        list_devices: Callable[[], Iterable[str | ListedDevice]],
        *,
        directories: Iterable[str] = ("/dev",),
        missing_device_ttl: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve what ``list_devices`` returns: paths, or ListedDevice entries.

        ``list_devices`` runs in a worker thread, at least once a minute and when files are created, removed or renamed
        in ``directories``, whose subdirectories do not count. It may raise OSError or BackendError; any other error
        ends the plugin. ``missing_device_ttl`` is in seconds; 0 removes devices at once.
        """
        self.resource_name = resource_name
        self._list_devices = list_devices
        self._directories = frozenset(directories)
        self._missing_device_ttl = missing_device_ttl
        self._clock = clock
        self._missing_since: dict[str, float] = {}
        self._slots: Sequence[tuple[str, ListedDevice]] = ()
        self._by_id: Mapping[str, ListedDevice] = {}

    def scan(self) -> None:
        """List the devices. Raises what ``list_devices`` raises."""
        listed = [ListedDevice(each) if isinstance(each, str) else each for each in self._list_devices()]
        devices = [*listed, *self._missing({device.path for device in listed})]
        self._slots = [(device_id, device) for device in devices for device_id in slot_ids(device)]
        self._by_id = dict(reversed(self._slots))  # of several devices with an ID, the first one is advertised

    def _missing(self, listed_paths: Collection[str]) -> list[ListedDevice]:
        """Return the devices that were listed before and have been missing for less than the limit."""
        now = self._clock()
        known = {device.path: device for device in self._by_id.values()}
        self._missing_since = {path: self._missing_since.get(path, now) for path in known if path not in listed_paths}
        return [
            known[path]._replace(reason=MISSING)
            for path, since in self._missing_since.items()
            if now - since < self._missing_device_ttl
        ]

    def seconds_until_scan(self) -> float | None:
        """Return when the next missing device has to be removed."""
        now = self._clock()
        remaining = [self._missing_device_ttl - (now - since) for since in self._missing_since.values()]
        return min((seconds for seconds in remaining if seconds > 0), default=None)

    def devices(self) -> list[Device]:
        """Return the slots of all devices."""
        return [Device(device_id, device.reason) for device_id, device in self._slots]

    def directories(self) -> frozenset[str]:
        """Return the directories given to the constructor."""
        return self._directories

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Return each device node, at its own path, and its mounts. Raises AllocationError."""
        by_id = self._by_id
        for device_id in ids:
            if device_id not in by_id:
                raise UnknownDeviceError(f"device {device_id!r} is unknown")
            if by_id[device_id].reason:
                raise UnhealthyDeviceError(f"device {device_id!r} is unhealthy: {by_id[device_id].reason}")
        allocated = {by_id[device_id].path: by_id[device_id] for device_id in ids}.values()
        return ContainerEdits(
            devices=[DeviceNode(device.path, device.path, device.permissions) for device in allocated],
            mounts=list(dict.fromkeys(mount for device in allocated for mount in device.mounts)),
        )


def slot_ids(device: ListedDevice) -> list[str]:
    """Return the IDs of the slots of a device."""
    name = device.path.removeprefix("/dev/").strip("/").replace("/", "-")
    return [name] if device.slots == 1 else [f"{name}::{slot}" for slot in range(device.slots)]
