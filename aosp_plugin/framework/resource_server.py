"""The server of one resource to the kubelet: the part that device plugins and DRA drivers have in common."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar, NamedTuple

from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.conditions import KUBELET_DISAGREES, Condition, Conditions
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.registration import Registration
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.scan_loop import ScanLoop
from aosp_plugin.framework.service.logs import working_for
from aosp_plugin.framework.timing import DEFAULT, Stop, Timings, complete_unless

BAD_ROUNDS = 2
"""Rounds in a row with fewer devices than published after which the kubelet disagrees."""


class DriverState(NamedTuple):
    """The numbers of slices and claims of a driver."""

    name: str
    """Name of the driver, such as gpu.example.com."""
    slices: int
    """Number of ResourceSlices that should exist."""
    slices_confirmed: int
    """Number of ResourceSlices that the API server has as they should be."""
    claims: int
    """Number of prepared claims."""


class Confirmation:
    """The devices that the kubelet has, compared with the published ones. The attributes are for any thread.

    The methods are for the event loop.
    """

    def __init__(self, resource: str, conditions: Conditions, metrics: Metrics) -> None:
        self._resource = resource
        self._conditions = conditions
        self._known = metrics.kubelet_allocatable
        self._bad_rounds = 0
        self._attempted = float("-inf")
        self.allocatable: int | None = None
        """Number of healthy devices that the kubelet has; None if it is unknown."""
        self.published = 0
        """Number of healthy devices that the plugin had published when the kubelet answered."""
        self.unknown = "the kubelet has not been asked yet"
        """Why the kubelet's number is unknown, for people; empty if it is known."""

    def __str__(self) -> str:
        """Return the numbers in a few words, for people."""
        if self.unknown:
            return f"the kubelet's number of devices is unknown: {self.unknown}"
        return f"{self.allocatable} of {self.published} healthy devices allocatable"

    @property
    def in_doubt(self) -> bool:
        """Whether the kubelet had fewer devices when it last answered, so that the next round follows soon."""
        conditions = self._conditions.of(self._resource)
        return self._bad_rounds > 0 or any(each.kind is KUBELET_DISAGREES for each in conditions)

    def unavailable(self, reason: str) -> None:
        """Record why the kubelet's number is unknown. A disagreement lasts until the kubelet has all devices."""
        self.allocatable, self.unknown, self._bad_rounds = None, reason, 0
        self._known.remove(self._resource)

    def record(self, allocatable: int, published: int) -> None:
        """Record the numbers of healthy devices that the kubelet has, and that the plugin published."""
        self.allocatable, self.published, self.unknown = allocatable, published, ""
        self._known.labels(self._resource).set(allocatable)

    def compare(self, allocatable: int, published: int, now: float, timings: Timings = DEFAULT) -> bool:
        """Record and compare the numbers; return whether to register again.

        ``now`` is a monotonic time in seconds.
        """
        self.record(allocatable, published)
        if allocatable >= published:
            self.agree()
            return False
        self._bad_rounds += 1
        if self._bad_rounds < BAD_ROUNDS:
            return False
        text = f"the kubelet has {allocatable} of {published} healthy devices"
        fields = {"allocatable": allocatable, "published": published}
        self._conditions.replace("kubelet", self._resource, [Condition(KUBELET_DISAGREES, text, fields=fields)])
        if now < self._attempted + timings.view_pause:
            return False
        self._attempted, self._bad_rounds = now, 0
        return True

    def agree(self) -> None:
        """End the condition, because the kubelet has all devices of this plugin or of a later one."""
        self._bad_rounds = 0
        self._conditions.replace("kubelet", self._resource, ())


class ResourceServer(ABC):
    """Serves one resource. Create and run it in the same event loop; it runs once.

    The backend has a worker thread of its own, see ``Backend``.
    """

    registration: Registration
    """Set by the subclass. Its public attributes may be read in any thread."""
    _is_listed: ClassVar = True
    """Whether the kubelet gets the devices as one list."""

    def __init__(self, backend: Backend[Any], runtime: Runtime) -> None:
        """Servers of the same process share ``runtime``."""
        self.resource_name = backend.resource_name
        """The extended resource."""
        self._stop = Stop(runtime.timings, runtime.clock)
        self._conditions = runtime.conditions
        self._scan_loop = ScanLoop(backend, self._stop, runtime, is_listed=self._is_listed)
        self._kubelet_files = self._scan_loop.files.subscribe()
        self.inventory = self._scan_loop.inventory
        self.confirmation = Confirmation(self.resource_name, runtime.conditions, runtime.metrics)
        """The kubelet's number of devices; always unknown for a DRA driver, whose devices are in ResourceSlices."""
        self.pods_changed = asyncio.Event()
        """Set when a pod may have got or returned devices; its one subscriber clears it."""

    @property
    def driver(self) -> DriverState | None:
        """The state of a DRA driver; None for a device plugin."""
        return None

    @property
    def registered(self) -> bool:
        """Whether the kubelet is registered, and has an open stream of the devices of a device plugin."""
        return self.registration.registered

    def conditions(self) -> list[Condition]:
        """Return the conditions of the resource. May be called in any thread."""
        return self._conditions.of(self.resource_name)

    @property
    def ready(self) -> bool:
        """Whether no condition keeps pods from getting the devices. May be read in any thread.

        A resource without devices is ready: a node may have none, and a restart would bring none back.
        """
        return not any(each.kind.blocks for each in self.conditions())

    def stop(self, within: float | None = None) -> None:
        """Make ``run`` return, and remove the socket. A part that still runs after ``within`` seconds is abandoned.

        The default is ``Timings.stop``.
        """
        self._stop.request(within)

    def rescan(self) -> None:
        """Request a full scan without a file event."""
        self._scan_loop.trigger()

    async def prepare(self) -> None:
        """Scan the devices for the first time, without registration or any other effect on the host.

        ``run`` has to follow. Raises what ``ScanLoop.prepare`` raises.
        """
        with working_for(self.resource_name):
            await self._scan_loop.prepare()

    async def run(self) -> None:
        """Serve until ``stop`` is called; call ``prepare`` first, if that has not happened yet.

        Raises what ``prepare`` raises, but not if the scan hangs, and KubeletError if a device plugin can never be
        registered. Later failures of scans, the kubelet and the API server are retried. Several errors are raised as a
        group.
        """
        with working_for(self.resource_name):
            try:
                await self._run()
            except ExceptionGroup as group:
                raise group.exceptions[0] if len(group.exceptions) == 1 else group from None
            finally:
                if not self._stop.is_set():
                    self.stop()
                self._scan_loop.files.unsubscribe(self._kubelet_files)
                await self._scan_loop.close(self._close_connections())

    @abstractmethod
    def _beside(self) -> Iterable[Coroutine[None, None, None]]:
        """Return the tasks beside scans and registration, which are cancelled when the registration ends."""

    async def _start(self) -> None:
        """Prepare for the registration."""
        await self._scan_loop.start()

    async def _run(self) -> None:
        if not await complete_unless(self._stop, self._start()):
            return
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(work) for work in (self._scan_loop.run(), *self._beside())]
            await self.registration.run()
            for task in others:
                task.cancel()

    async def _close_connections(self) -> None:
        await self.registration.close()
