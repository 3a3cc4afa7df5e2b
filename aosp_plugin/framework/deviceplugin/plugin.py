"""A device plugin: one backend, kept current and registered with the kubelet of this host."""

import asyncio
from collections.abc import Coroutine

from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.deviceplugin.other_plugins import OtherPlugins
from aosp_plugin.framework.deviceplugin.supervisor import PluginDirectory, Supervisor
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.observer import NULL_OBSERVER, Observer
from aosp_plugin.framework.registration import Loss
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Timings


class DevicePlugin(ResourceServer):
    """The plugin of one resource. Create and run it in the same event loop; it runs once."""

    _registration: Supervisor

    def __init__(
        self,
        backend: Backend,
        *,
        kubelet_dir: str = KUBELET_DIRECTORY,
        timings: Timings = DEFAULT,
        clock: Clock = CLOCK,
        files: FileEvents | None = None,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """Plugins of the same process share ``files``; the caller that creates ``files`` also closes it."""
        super().__init__(backend, files=files, observer=observer, timings=timings, clock=clock)
        self._observer = observer
        self._registration = Supervisor(
            backend,
            self.inventory,
            directory=PluginDirectory(kubelet_dir, backend.resource_name),
            files=self._kubelet_files,
            worker=self._scanned.worker,
            stop=self._stop,
            rescan=self.rescan,
            timings=timings,
            clock=clock,
            observer=observer,
        )
        self._other_plugins = OtherPlugins(
            self._registration,
            reregister=self.reregister,
            override=self._set_overridden,
            earlier_ended=self._replace_traces,
            timings=timings,
            clock=clock,
            observer=observer,
        )

    async def prepare(self, *, require_devices: bool = False) -> None:
        """See ``ResourceServer``. Raises KubeletDirectoryError if there is no usable directory of a kubelet.

        Whatever fails, neither is tried again by ``run``: the caller may run a plugin that cannot serve yet.
        """
        scan = super().prepare(require_devices=require_devices)
        for result in await asyncio.gather(self._registration.check(), scan, return_exceptions=True):
            if result is not None:
                raise result

    def reregister(self, loss: Loss) -> None:
        """End the current registration and register again, with ``loss`` in the log; no effect if not registered.

        For a kubelet that has lost the devices although its stream is open.
        """
        if self.registered:
            self._observer.lost_by_kubelet()
            self._registration.reregister(loss)

    @property
    def endpoint(self) -> str:
        """Name of the plugin's socket while it is registered, and else empty."""
        return self._registration.registered_endpoint

    @property
    def view_due(self) -> asyncio.Event:
        """Set after each registration, and when another plugin of the resource has started or ended.

        Its one subscriber, a ``KubeletView``, clears it.
        """
        return self._registration.view_due

    @property
    def notice(self) -> str:
        """What an operator should know although the plugin is ready: other plugins of the resource on this node.

        May be read in any thread, like ``confirmation``.
        """
        return self._other_plugins.notice

    @property
    def overridden(self) -> bool:
        """Whether a plugin of the resource that registered later has taken over, as in a rolling update."""
        return self._other_plugins.overridden

    def details(self, *, ready: bool) -> str:
        """Return what the kubelet has of the devices, for the readiness probe; empty if nothing is to be said."""
        # The number of the time before the registration has ended would be misleading.
        shown = self.registered and (ready or not self.confirmation.unknown)
        return str(self.confirmation) if shown else ""

    def _problems(self) -> list[str]:
        truncated = self.inventory.snapshot.truncated
        return [
            self._registration.problem or self.confirmation.problem,
            self._scanned.problem,
            f"{truncated} devices do not fit into the kubelet's 4 MiB message limit" if truncated else "",
        ]

    def _beside(self) -> list[Coroutine[None, None, None]]:
        return [self._other_plugins.run()]

    def _set_overridden(self, overridden: bool) -> None:  # noqa: FBT001 - a callback
        """Leave kubelet and host to a later plugin, or take the host back; the new registration does the same."""
        if overridden:
            self._registration.silence()
        self._scanned.hold(held=overridden)

    def _replace_traces(self) -> None:
        """Publish the devices again, and update the host: another plugin may have done so last, before it ended."""
        self.inventory.republish()
        self.rescan()
