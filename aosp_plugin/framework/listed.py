"""The plainest backend: a function that lists device nodes. The whole of a plugin for another device."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from aosp_plugin.framework.api.deviceplugin_pb2 import ContainerAllocateResponse, DeviceSpec
from aosp_plugin.framework.deviceplugin.plugin import KUBELET_DIRECTORY, DevicePlugin
from aosp_plugin.framework.inventory import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence


class ListedDevices:
    """A backend over a function that returns the paths of device nodes.

    A device's ID is its path below /dev with dashes for slashes; a container gets the node at the same path.
    """

    get_preferred_allocation_available = False
    pre_start_required = False

    def __init__(self, list_devices: Callable[[], Iterable[str]], directories: Iterable[str]) -> None:
        """``directories`` are those in which devices come and go."""
        self._list_devices = list_devices
        self._directories = frozenset(directories)
        self._paths: dict[str, str] = {}

    def devices(self) -> list[Device]:
        """Return what was listed; all of it is healthy."""
        return [Device(device_id) for device_id in self._paths]

    def directories(self) -> frozenset[str]:
        """Return where devices come and go."""
        return self._directories

    def refresh(self, changed: Collection[str] | None = None) -> None:  # noqa: ARG002 - listing is all it can
        """List again."""
        self._paths = {device_id(path): path for path in self._list_devices()}

    def allocate(self, ids: Sequence[str]) -> ContainerAllocateResponse:
        """Give the container each node at its own path."""
        paths = [self._paths[one] for one in ids]
        return ContainerAllocateResponse(
            devices=[DeviceSpec(host_path=path, container_path=path, permissions="rw") for path in paths]
        )

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Have no preference: never asked, as ``get_preferred_allocation_available`` is false."""
        return [*must_include, *available][:size]

    def pre_start(self, ids: Sequence[str]) -> None:
        """Do nothing: never asked, as ``pre_start_required`` is false."""

    def close(self) -> None:
        """Hold nothing."""


def device_id(path: str) -> str:
    """Return the ID of the device node at ``path``."""
    return path.removeprefix("/dev/").strip("/").replace("/", "-")


def serve_listed(
    list_devices: Callable[[], Iterable[str]],
    *,
    resource_name: str,
    socket_name: str,
    directories: Iterable[str] = ("/dev",),
    kubelet_dir: str = KUBELET_DIRECTORY,
) -> None:
    """Serve what ``list_devices`` returns, until SIGTERM or SIGINT. Raises PluginError."""

    async def serve() -> None:
        plugin = DevicePlugin(
            ListedDevices(list_devices, directories),
            resource_name=resource_name,
            socket_name=socket_name,
            kubelet_dir=kubelet_dir,
        )
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signal_number, plugin.stop)
        await plugin.run()

    asyncio.run(serve())
