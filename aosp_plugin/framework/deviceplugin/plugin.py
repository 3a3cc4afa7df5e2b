"""A device plugin: one backend, kept current and registered with the kubelet of this host."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.deviceplugin.other_plugins import OtherPlugins
from aosp_plugin.framework.deviceplugin.servicer import Servicer
from aosp_plugin.framework.deviceplugin.supervisor import PluginDirectory, Supervisor
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.runtime import Runtime


class DevicePlugin(ResourceServer):
    """The plugin of one resource. Create and run it in the same event loop; it runs once."""

    registration: Supervisor

    def __init__(
        self,
        backend: Backend[Any],
        *,
        kubelet_dir: str = KUBELET_DIRECTORY,
        socket_prefix: str = "",
        runtime: Runtime | None = None,
    ) -> None:
        """Plugins of the same process share ``runtime``; None for one of its own.

        The names of the plugin's sockets begin with ``socket_prefix``, which must not change between versions of a
        program: a plugin finds the others of its resource by these names.
        """
        runtime = runtime or Runtime()
        runtime.metrics.add(backend.resource_name)
        super().__init__(backend, runtime)
        worker, pods_changed = self._scan_loop.worker, self.pods_changed.set
        self.registration = Supervisor(
            backend.resource_name,
            lambda changed: Servicer(backend, self.inventory, worker, self.rescan, changed, pods_changed, runtime),
            directory=PluginDirectory(kubelet_dir, backend.resource_name, socket_prefix),
            files=self._kubelet_files,
            stop=self._stop,
            runtime=runtime,
        )
        self._other_plugins = OtherPlugins(
            self.registration,
            backend.resource_name,
            runtime,
            pause_updates=self._scan_loop.pause_updates,
            earlier_ended=self._replace_traces,
        )

    async def prepare(self) -> None:
        """See ``ResourceServer``. Raises KubeletDirectoryError if there is no usable directory of a kubelet.

        ``run`` does not repeat this check, so a plugin whose ``prepare`` failed may still run.
        """
        scan = super().prepare()
        for result in await asyncio.gather(self.registration.check(), scan, return_exceptions=True):
            if result is not None:
                raise result

    @property
    def overridden(self) -> bool:
        """Whether a plugin of the resource that registered later has taken over, as in a rolling update."""
        return self._other_plugins.overridden

    async def _start(self) -> None:
        await self.registration.check()
        await super()._start()

    def _beside(self) -> list[Coroutine[None, None, None]]:
        return [self._other_plugins.run()]

    def _replace_traces(self) -> None:
        """Publish the devices again, and update the host, because a plugin that has ended may have done so last."""
        self.inventory.republish()
        self.rescan()
