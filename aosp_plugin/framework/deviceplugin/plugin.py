"""A device plugin as a whole: a backend, kept current and kept registered with this host's kubelet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

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

KUBELET_DIRECTORY = "/var/lib/kubelet/device-plugins"
"""A constant of the kubelet: --root-dir does not move it (pkg/apis/deviceplugin/v1beta1/constants.go)."""


class DevicePlugin:
    """One resource. To be made and run in one event loop; ends where it is told to, or raises."""

    def __init__(
        self,
        backend: Backend,
        *,
        resource_name: str,
        socket_name: str,
        kubelet_dir: str = KUBELET_DIRECTORY,
        timings: Timings = Timings(),
        files: FileEvents | None = None,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """``socket_name`` begins the names of the plugin's sockets, and must be no other plugin's.

        Several plugins of one process share ``files``, and whoever made these closes them.
        """
        self._backend = backend
        self._resource_name = resource_name
        self._stop = asyncio.Event()
        events = files if files is not None else FileEvents()
        self._own_files = events if files is None else None
        self.inventory = Inventory()
        self._refresher = Refresher(backend, self.inventory, events.subscribe(), self._stop, observer)
        self._supervisor = Supervisor(
            backend,
            self.inventory,
            resource_name=resource_name,
            directory=PluginDirectory(kubelet_dir, socket_name),
            files=events.subscribe(),
            stop=self._stop,
            rescan=self.rescan,
            timings=timings,
            observer=observer,
        )

    def stop(self) -> None:
        """End ``run``: the stream ends, the socket is removed."""
        self._stop.set()

    def rescan(self) -> None:
        """Have the devices looked at even though no file event came."""
        self._refresher.trigger()

    @property
    def unhealthy(self) -> str:
        """Why this process can't do its work; empty where it can."""
        return self._refresher.problem

    @property
    def unready(self) -> str:
        """Why the kubelet does not know all the devices; empty where it does."""
        truncated = self.inventory.snapshot.truncated
        if truncated:
            return self._supervisor.problem or f"{truncated} devices do not fit into the message to the kubelet"
        return self._supervisor.problem

    async def run(self, *, require_devices: bool = False) -> None:
        """Look at the devices, then serve until ``stop`` is called.

        Raises OSError and PluginError where the first look fails, BackendError where it finds no device and one
        is required, and KubeletError where the plugin can't ever be registered. Later looks may fail.
        """
        with working_for(self._resource_name):
            await self._run(require_devices=require_devices)

    async def _run(self, *, require_devices: bool) -> None:
        try:
            await self._refresher.look()
            if require_devices and not self.inventory.snapshot.devices:
                raise BackendError("there is no device, and at least one is required")
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
