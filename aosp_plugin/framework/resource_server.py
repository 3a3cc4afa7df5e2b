"""What serves one resource to the kubelet: the part that device plugins and DRA drivers have in common."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from typing import NamedTuple

from aosp_plugin.framework.aio import complete_unless
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.observer import NULL_OBSERVER, Observer, working_for
from aosp_plugin.framework.registration import Registration
from aosp_plugin.framework.scan_loop import ScanLoop
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Stop, Timings

LOG = logging.getLogger(__name__)

BAD_ROUNDS = 2
"""Rounds in a row with fewer devices than published after which the kubelet counts as wrong."""


class DriverState(NamedTuple):
    """What a driver has published and prepared."""

    name: str
    """Name of the driver, such as phone.aosp.io."""
    slices: int
    """Number of ResourceSlices that should exist."""
    slices_confirmed: int
    """Number of those that the API server has as they should be."""
    claims: int
    """Number of prepared claims."""


class Confirmation:
    """What the kubelet has of one plugin's devices. Written in the event loop; the attributes are for any thread."""

    def __init__(self, observer: Observer = NULL_OBSERVER) -> None:
        self._observer = observer
        self._bad_rounds = 0
        self._attempted = float("-inf")
        self.allocatable: int | None = None
        """Number of healthy devices that the kubelet has; None if it is unknown."""
        self.published = 0
        """Number of healthy devices that the plugin had published at that time."""
        self.unknown = "the kubelet has not been asked yet"
        """Why the kubelet's number is unknown; empty if it is known."""
        self.problem = ""
        """That the kubelet has fewer devices than published; empty if it has not, or if that is unknown."""

    def __str__(self) -> str:
        """Return the numbers in a few words, for the readiness probe."""
        if self.unknown:
            return f"the kubelet's number of devices is unknown: {self.unknown}"
        return f"{self.allocatable} of {self.published} healthy devices allocatable"

    @property
    def in_doubt(self) -> bool:
        """Whether the next round follows sooner than usual."""
        return bool(self._bad_rounds or self.problem)

    def unavailable(self, reason: str) -> None:
        """Record why it is unknown what the kubelet has."""
        self.allocatable, self.unknown, self.problem, self._bad_rounds = None, reason, "", 0
        self._observer.confirmed(None)

    def record(self, allocatable: int, published: int) -> None:
        """Record the numbers of healthy devices that the kubelet has, and that the plugin published."""
        self.allocatable, self.published, self.unknown = allocatable, published, ""
        self._observer.confirmed(allocatable)

    def compare(self, allocatable: int, published: int, now: float, timings: Timings = DEFAULT) -> bool:
        """Record and compare these numbers; return whether to register again.

        ``now`` is a monotonic time in seconds.
        """
        self.record(allocatable, published)
        if allocatable >= published:
            if self.problem:
                LOG.info("kubelet has all devices again", extra={"allocatable": allocatable, "published": published})
            self.problem, self._bad_rounds = "", 0
            return False
        self._bad_rounds += 1
        if self._bad_rounds < BAD_ROUNDS:
            return False
        if not self.problem:
            extra = {"allocatable": allocatable, "published": published}
            LOG.warning("kubelet has fewer devices than published", extra=extra)
        self.problem = f"the kubelet has {allocatable} of {published} healthy devices"
        due = self._attempted + timings.view_pause
        if now < due:
            self.problem += f", next registration in {due - now:.0f} s"
            return False
        self._attempted, self._bad_rounds = now, 0
        return True


class ResourceServer(ABC):
    """Serves one resource. Create and run it in the same event loop; it runs once.

    The backend has a worker thread of its own, see ``Backend``.
    """

    _registration: Registration
    """Set by the subclass."""

    def __init__(
        self,
        backend: Backend,
        *,
        files: FileEvents | None,
        observer: Observer,
        timings: Timings,
        clock: Clock = CLOCK,
    ) -> None:
        """Servers of the same process share ``files``; the caller that creates ``files`` also closes it."""
        self.resource_name = backend.resource_name
        """The extended resource."""
        self._stop = Stop(timings, clock)
        self._scanned = ScanLoop(backend, self._stop, files=files, observer=observer, timings=timings, clock=clock)
        self._kubelet_files = self._scanned.files.subscribe()
        self.inventory = self._scanned.inventory
        self.confirmation = Confirmation(observer)
        """What the kubelet has of the devices; always unknown for a DRA driver, whose devices are in ResourceSlices."""

    @property
    def driver(self) -> DriverState | None:
        """What a DRA driver has published and prepared; None for a device plugin."""
        return None

    @property
    def registered(self) -> bool:
        """Whether the kubelet is registered, and has an open stream of the devices of a device plugin."""
        return self._registration.registered

    @property
    def unready(self) -> str:
        """Why pods cannot get all devices as they are now; empty if they can. May be read in any thread."""
        return "; ".join(filter(None, self._problems()))

    @property
    @abstractmethod
    def notice(self) -> str:
        """What an operator should know although the resource is ready. May be read in any thread."""

    @abstractmethod
    def details(self, *, ready: bool) -> str:
        """Return what is published, for the readiness probe; empty if nothing is to be said."""

    def stop(self, within: float | None = None) -> None:
        """Make ``run`` return: the socket is removed. What has not ended ``within`` seconds is logged and left.

        The default is ``Timings.stop``.
        """
        self._stop.request(within)

    def rescan(self) -> None:
        """Request a full scan without a file event."""
        self._scanned.trigger()

    async def prepare(self, *, require_devices: bool = False) -> None:
        """Scan the devices for the first time, without registration or any other effect on the host.

        Either ``run`` or ``discard`` has to follow. Raises what ``ScanLoop.prepare`` raises.
        """
        with working_for(self.resource_name):
            await self._scanned.prepare(require_devices=require_devices)

    async def discard(self, within: float | None = None) -> None:
        """Release the resources of a server that does not run, as ``stop``. ``Backend.close`` is not called."""
        self.stop(within)
        with working_for(self.resource_name):
            await self._close(close_backend=False)

    async def run(self, *, require_devices: bool = False) -> None:
        """Serve until ``stop`` is called; ``prepare`` first, if that has not happened yet.

        Raises what ``prepare`` raises, except that a scan which hangs does not keep the server from registering, and
        KubeletError if a device plugin can never be registered. Later scans, the kubelet and the API server may fail.
        Several errors are raised as a group.
        """
        with working_for(self.resource_name):
            try:
                await self._run(require_devices=require_devices)
            except ExceptionGroup as group:
                raise group.exceptions[0] if len(group.exceptions) == 1 else group from None
            finally:
                if not self._stop.is_set():
                    self.stop()
                await self._close(close_backend=True)

    @abstractmethod
    def _problems(self) -> Iterable[str]:
        """Return why pods cannot get all devices; empty texts do not count."""

    @abstractmethod
    def _beside(self) -> Iterable[Coroutine[None, None, None]]:
        """Return what runs beside the scans and the registration, and is cancelled when that ends."""

    async def _start(self, *, require_devices: bool) -> None:
        """Do what comes before the registration."""
        await self._scanned.start(require_devices=require_devices)

    async def _run(self, *, require_devices: bool) -> None:
        if not await complete_unless(self._stop, self._start(require_devices=require_devices)):
            return
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(work) for work in (self._scanned.run(), *self._beside())]
            await self._registration.run()
            for task in others:
                task.cancel()

    async def _close(self, *, close_backend: bool) -> None:
        self._scanned.files.unsubscribe(self._kubelet_files)
        await self._scanned.close(self._close_connections(), close_backend=close_backend)

    async def _close_connections(self) -> None:
        await self._registration.close()
