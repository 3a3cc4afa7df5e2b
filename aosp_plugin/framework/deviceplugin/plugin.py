"""A device plugin: one backend, kept current, registered with the kubelet of this host, and compared with it."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.conditions import KUBELET_NOT_COMPARED
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.deviceplugin.servicer import Servicer
from aosp_plugin.framework.deviceplugin.supervisor import OtherPlugins, Supervisor
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.registration import Loss
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service.logs import working_for
from aosp_plugin.framework.sockets import PluginDirectory


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


class KubeletView:
    """Compares the devices that the kubelet has with those that the plugins of one process published.

    A kubelet may have lost a plugin although the plugin's stream is open and its socket is in place, see
    ``OtherPlugins``. Only the kubelet knows. It is therefore asked how many healthy devices it has (podresources
    GetAllocatableResources), at intervals, and after each registration. If it has fewer than published in two rounds in
    a row, the plugin registers again, but not more often than every ``Timings.view_pause``. Kubelets 1.21 and 1.22, in
    which the call is alpha, count unhealthy devices too (kubernetes issue 104122): only ``OtherPlugins`` detects a loss
    there.

    Where the kubelet does not answer, because it is too old or its socket is not mounted, nothing is compared: a plugin
    then counts as registered while the kubelet's stream is open, and ``Confirmation.unknown`` has the reason.

    For one event loop.
    """

    def __init__(
        self,
        plugins: Sequence[DevicePlugin],
        pod_resources: PodResources,
        runtime: Runtime,
    ) -> None:
        """Ask ``pod_resources`` for the devices of ``plugins``."""
        self._plugins = plugins
        self._pod_resources = pod_resources
        self._timings = runtime.timings
        self._clock = runtime.clock
        self._conditions = runtime.conditions

    async def run(self) -> None:
        """Ask the kubelet at intervals, and after each registration, until cancelled; with no plugin, not at all."""
        due = [plugin.registration.view_due for plugin in self._plugins]
        while due:
            in_doubt = await self._round()
            timeout = self._timings.recheck if in_doubt else self._timings.view_interval
            if await self._clock.wait(*due, timeout=timeout):
                for event in due:
                    event.clear()
                await self._clock.sleep(self._timings.view_after_registration - self._timings.view_settle)

    async def _round(self) -> bool:
        """Ask the kubelet once, and compare its answer with the devices of each plugin.

        A plugin is not compared if its devices changed or it registered during the round, or if the kubelet has the
        devices of a plugin that registered later. Return whether the next round follows soon.
        """
        before = list(map(_state, self._plugins))
        await self._clock.sleep(self._timings.view_settle)
        answer = await self._pod_resources.allocatable()
        in_doubt = False
        for plugin, state in zip(self._plugins, before, strict=True):
            confirmation = plugin.confirmation
            if answer.problem:
                confirmation.unavailable(answer.problem)
                in_doubt |= confirmation.in_doubt
                continue
            allocatable, published = len(answer.devices[plugin.resource_name]), plugin.inventory.snapshot.healthy
            if plugin.overridden:
                confirmation.unavailable("it has those of a plugin that registered later")
                confirmation.agree()
                continue
            if not plugin.registered or _state(plugin) != state:
                confirmation.record(allocatable, published)
                in_doubt |= plugin.registered
                continue
            with working_for(plugin.resource_name):
                if confirmation.compare(allocatable, published, self._clock(), self._timings):
                    plugin.registration.reregister(Loss.FEWER_DEVICES)
            in_doubt |= confirmation.in_doubt
        if not answer.problem or not self._pod_resources.enabled:
            self._conditions.set(KUBELET_NOT_COMPARED, "")
        elif any(plugin.registered for plugin in self._plugins):  # otherwise, the kubelet may be down
            self._conditions.set(KUBELET_NOT_COMPARED, answer.problem)
        return in_doubt


def _state(plugin: DevicePlugin) -> tuple[str, int]:
    """Return the registration and the devices of a plugin."""
    return plugin.registration.registered_endpoint, plugin.inventory.snapshot.revision
