"""A device plugin: one backend, kept current and registered with the kubelet of this host."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory
from aosp_plugin.framework.deviceplugin.supervisor import Supervisor, Timings
from aosp_plugin.framework.errors import BackendError
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.observer import NULL_OBSERVER, working_for
from aosp_plugin.framework.refresher import Refresher

if TYPE_CHECKING:
    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.observer import Observer


class DevicePlugin:
    """The plugin of one resource. Create and run it in the same event loop; it runs once."""

    def __init__(
        self,
        backend: Backend,
        *,
        kubelet_dir: str = KUBELET_DIRECTORY,
        timings: Timings = Timings(),
        files: FileEvents | None = None,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """Plugins of the same process share ``files``; the caller that creates ``files`` also closes it."""
        self._backend = backend
        self._stop = asyncio.Event()
        events = files if files is not None else FileEvents()
        self._own_files = events if files is None else None
        self.inventory = Inventory()
        self._refresher = Refresher(backend, self.inventory, events.subscribe(), self._stop, observer)
        self._supervisor = Supervisor(
            backend,
            self.inventory,
            directory=PluginDirectory(kubelet_dir, backend.resource_name),
            files=events.subscribe(),
            stop=self._stop,
            rescan=self.rescan,
            timings=timings,
            observer=observer,
        )

    @property
    def resource_name(self) -> str:
        """The extended resource that the plugin serves."""
        return self._backend.resource_name

    def stop(self) -> None:
        """Make ``run`` return: streams end, and the socket is removed."""
        self._stop.set()

    def rescan(self) -> None:
        """Request a full scan without a file event."""
        self._refresher.trigger()

    @property
    def unhealthy(self) -> str:
        """Why the devices cannot be scanned; empty if they can. May be read in any thread."""
        return self._refresher.problem

    @property
    def unready(self) -> str:
        """Why the kubelet does not have all devices; empty if it has."""
        truncated = self.inventory.snapshot.truncated
        if truncated:
            return self._supervisor.problem or f"{truncated} devices do not fit into the kubelet's 4 MiB message limit"
        return self._supervisor.problem

    async def run(self, *, require_devices: bool = False) -> None:
        """Scan the devices, then serve until ``stop`` is called.

        Raises OSError and PluginError if the first scan fails, BackendError if it finds no device although
        ``require_devices`` is set, and KubeletError if the plugin can never be registered. Later scans may fail.
        """
        with working_for(self.resource_name):
            try:
                await self._refresher.scan()
                if require_devices and not self.inventory.snapshot.devices:
                    scanned = f" matches {self._backend.scanned_files}" if self._backend.scanned_files else " found"
                    raise BackendError(f"no device of {self.resource_name}{scanned}, and require_devices is set")
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._refresher.run())
                    tasks.create_task(self._supervise())
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
            finally:
                if self._own_files is not None:
                    self._own_files.close()
                self._backend.close()

    async def _supervise(self) -> None:
        try:
            await self._supervisor.run()
        finally:
            self.stop()
