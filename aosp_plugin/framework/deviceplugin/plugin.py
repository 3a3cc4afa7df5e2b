"""A device plugin: one backend, kept current and registered with the kubelet of this host."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import complete_unless, run_and_close
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.deviceplugin.kubelet_view import Confirmation
from aosp_plugin.framework.deviceplugin.other_plugins import OtherPlugins
from aosp_plugin.framework.deviceplugin.supervisor import PluginDirectory, Supervisor
from aosp_plugin.framework.observer import NULL_OBSERVER, working_for
from aosp_plugin.framework.scan_loop import ScanLoop
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Timings

if TYPE_CHECKING:
    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.events.file_events import FileEvents
    from aosp_plugin.framework.observer import Observer
    from aosp_plugin.framework.registration import Loss


class DevicePlugin:
    """The plugin of one resource. Create and run it in the same event loop; it runs once.

    The backend has a worker thread of its own, see ``Backend``.
    """

    driver = None

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
        self.resource_name = backend.resource_name
        """The extended resource that the plugin serves."""
        self._stop = asyncio.Event()
        self._scanned = ScanLoop(backend, self._stop, files=files, observer=observer, timings=timings, clock=clock)
        self._kubelet_files = self._scanned.files.subscribe()
        self.inventory = self._scanned.inventory
        self._observer = observer
        self.confirmation = Confirmation(observer)
        """What the kubelet has of the devices; a ``KubeletView`` keeps it current."""
        self._supervisor = Supervisor(
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
            self._supervisor,
            reregister=self.reregister,
            override=self._set_overridden,
            earlier_ended=self._replace_traces,
            timings=timings,
            clock=clock,
            observer=observer,
        )

    def stop(self) -> None:
        """Make ``run`` return: streams end, and the socket is removed."""
        self._stop.set()

    def rescan(self) -> None:
        """Request a full scan without a file event."""
        self._scanned.trigger()

    def reregister(self, loss: Loss) -> None:
        """End the current registration and register again, with ``loss`` in the log; no effect if not registered.

        For a kubelet that has lost the devices although its stream is open.
        """
        if self.registered:
            self._observer.lost_by_kubelet()
            self._supervisor.reregister(loss)

    @property
    def endpoint(self) -> str:
        """Name of the plugin's socket while it is registered, and else empty."""
        return self._supervisor.registered_endpoint

    @property
    def view_due(self) -> asyncio.Event:
        """Set after each registration, and when another plugin of the resource has started or ended.

        Its one subscriber, a ``KubeletView``, clears it.
        """
        return self._supervisor.view_due

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

    @property
    def registered(self) -> bool:
        """Whether the kubelet is registered and has an open stream of the devices."""
        return self._supervisor.registered

    @property
    def unready(self) -> str:
        """Why the kubelet does not have all devices as they are now; empty if it has."""
        truncated = self.inventory.snapshot.truncated
        problems = [
            self._supervisor.problem or self.confirmation.problem,
            self._scanned.problem,
            f"{truncated} devices do not fit into the kubelet's 4 MiB message limit" if truncated else "",
        ]
        return "; ".join(problem for problem in problems if problem)

    def details(self, *, ready: bool) -> str:
        """Return what the kubelet has of the devices, for the readiness probe; empty if nothing is to be said."""
        # The number of the time before the registration has ended would be misleading.
        shown = self.registered and (ready or not self.confirmation.unknown)
        return str(self.confirmation) if shown else ""

    async def prepare(self, *, require_devices: bool = False) -> None:
        """Scan the devices for the first time, without registration or any other effect on the host.

        Either ``run`` or ``discard`` has to follow. Raises what ``ScanLoop.prepare`` raises.
        """
        with working_for(self.resource_name):
            await self._scanned.prepare(require_devices=require_devices)

    async def discard(self) -> None:
        """Release the resources of a plugin that does not run. ``Backend.close`` is not called."""
        with working_for(self.resource_name):
            await self._close(close_backend=False)

    async def run(self, *, require_devices: bool = False) -> None:
        """Serve until ``stop`` is called; ``prepare`` first, if that has not happened yet.

        Raises what ``prepare`` raises, except that a scan which hangs does not keep the plugin from registering, and
        KubeletError if the plugin can never be registered. Later scans may fail. Several errors are raised as a group.
        """
        with working_for(self.resource_name):
            await run_and_close(self._run(require_devices=require_devices), self._close(close_backend=True))

    async def _run(self, *, require_devices: bool) -> None:
        if await complete_unless(self._stop, self._scanned.start(require_devices=require_devices)):
            await self._serve()

    def _set_overridden(self, overridden: bool) -> None:  # noqa: FBT001 - a callback
        """Leave kubelet and host to a later plugin, or take the host back; the new registration does the same."""
        if overridden:
            self._supervisor.silence()
        self._scanned.hold(held=overridden)

    def _replace_traces(self) -> None:
        """Publish the devices again, and update the host: another plugin may have done so last, before it ended."""
        self.inventory.republish()
        self.rescan()

    async def _serve(self) -> None:
        """Refresh and supervise until ``stop`` is set, or one of them fails."""
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(self._scanned.run()),
                tasks.create_task(self._other_plugins.run()),
            ]
            await self._supervisor.run()
            for task in others:
                task.cancel()

    async def _close(self, *, close_backend: bool) -> None:
        self._scanned.files.unsubscribe(self._kubelet_files)
        await self._scanned.close(self._supervisor.close(), close_backend=close_backend)
