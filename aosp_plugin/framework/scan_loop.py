"""Keeps the inventory of a resource current: a scan of the whole host after each change, and at intervals.

A file event, a mount event or a timer wakes the loop. It scans, publishes the result, and lets the backend update the
host. Nothing is remembered from one scan to the next: whatever was missed is found by the next one.
"""

import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Literal

from aosp_plugin.framework.aio import debounce
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.errors import BackendError, PluginError, WorkerTimeoutError
from aosp_plugin.framework.events.file_events import FileEvents, Subscription
from aosp_plugin.framework.inventory import Inventory, Snapshot
from aosp_plugin.framework.observer import NULL_OBSERVER, LastingProblem, Observer, milliseconds
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Stop, Timings
from aosp_plugin.framework.worker import HostCall, Worker

LOG = logging.getLogger(__name__)

REST = 3
"""The pause after a scan, as a multiple of its processor time: a device that flaps costs a quarter of a processor."""


def check_devices(backend: Backend, devices: Collection[object]) -> None:
    """Raise BackendError if a backend has found no device."""
    if not devices:
        scanned = f" matches {backend.scanned_files}" if backend.scanned_files else " found"
        raise BackendError(f"no device of {backend.resource_name}{scanned}, and require_devices is set")


class ScanLoop:
    """Scans a backend in a worker thread of its own. For one event loop."""

    def __init__(
        self,
        backend: Backend,
        stop: Stop,
        *,
        files: FileEvents | None = None,
        observer: Observer = NULL_OBSERVER,
        timings: Timings = DEFAULT,
        clock: Clock = CLOCK,
    ) -> None:
        """``stop`` ends ``run``. The caller that creates ``files`` also closes it."""
        self.backend = backend
        self.worker = Worker(backend.resource_name)
        self.inventory = Inventory()
        self.files = files if files is not None else FileEvents(timings)
        self._own_files = files is None
        self._subscriptions: list[Subscription] = []
        self._changes = self.subscribe()
        self._stop = stop
        self._observer = observer
        self._timings = timings
        self._clock = clock
        self._prepared = False
        self._held = False
        self._due = self._update_due = 0.0
        self._cost = 0.0
        """Processor time of the last scan, in seconds."""
        self._first_change: float | None = None
        self._scanning = HostCall(
            self.worker,
            "device scan",
            limit=timings.hang,
            on_hang=partial(observer.scanned, "hung"),
            clock=clock,
        )
        self._updating = HostCall(self.worker, "host update", limit=timings.hang, clock=clock)
        self._truncated = LastingProblem(
            LOG,
            "device list truncated at the kubelet's 4 MiB limit",
            "device list no longer truncated",
            logging.ERROR,
        )

    @property
    def problem(self) -> str:
        """Why the inventory or the host may be outdated; empty if both are current. May be read in any thread."""
        own = "; ".join(filter(None, [self._scanning.problem, self._updating.problem]))
        return own or self.worker.hanging(self._timings.hang)

    def subscribe(self) -> Subscription:
        """Return a subscription to file events, to be used in ``worker``. ``close`` closes it."""
        subscription = self.files.subscribe()
        self._subscriptions.append(subscription)
        return subscription

    def trigger(self) -> None:
        """Request a scan without a change."""
        self._changes.notify()

    def hold(self, *, held: bool) -> None:
        """Scan, but leave the host to another plugin of the resource while ``held``."""
        self._held = held
        self.trigger()

    async def prepare(self, *, require_devices: bool = False) -> None:
        """Scan the devices for the first time, without any other effect on the host.

        Raises what makes the devices impossible to serve: OSError and PluginError of the scan, WorkerTimeoutError if it
        takes more than ``Timings.hang``, and BackendError if it finds no device although ``require_devices`` is set and
        the backend does not create devices.
        """
        await self.scan(self._timings.hang)
        self._prepared = True
        if require_devices and not self.backend.creates_devices:
            check_devices(self.backend, self.inventory.snapshot.devices)

    async def start(self, *, require_devices: bool) -> None:
        """Scan and update the host before the first registration, and scan again if that changed something.

        So the devices are published all at once, and none that the failed update of the host makes unusable. Only the
        first scan can keep the plugin from serving: another plugin may have been stopped for it.
        """
        if not self._prepared and not self._scanning.problem:  # a scan that hangs is logged, and not waited for twice
            with contextlib.suppress(WorkerTimeoutError):
                await self.prepare(require_devices=require_devices)
        if self._prepared:
            await self.update_host(self._timings.hang)
            if self.backend.creates_devices or self.backend.seconds_until_scan() == 0.0:
                with contextlib.suppress(OSError, PluginError):  # which is logged, and retried
                    await self.scan(self._timings.hang)
                if require_devices:
                    check_devices(self.backend, self.inventory.snapshot.devices)

    async def run(self) -> None:
        """Keep the inventory current until ``stop`` is set. A failed scan leaves the inventory as it was."""
        while not self._stop.is_set():
            await self._until_due()
            if self._stop.is_set():
                return
            with contextlib.suppress(OSError, PluginError):  # which is logged, and retried
                await self.scan()
                await self.update_host()
            await self._clock.wait(self._stop, timeout=min(REST * self._cost, self._timings.retry))

    async def scan(self, timeout: float | None = None) -> None:
        """Scan once, and publish the result. Raises OSError and PluginError; WorkerTimeoutError after ``timeout``."""
        started = self._clock()
        self._due = started
        self._first_change = self._first_change or self._changes.first_change()
        outcome: Literal["ok", "failed"] = "failed"
        try:
            devices = await self._scanning.run(self._scan, timeout)
            outcome = "ok"
        finally:
            seconds = self._clock() - started
            self._observer.scanned(outcome, seconds)
            self._set_due(scanned=outcome == "ok")
        since, self._first_change = self._first_change, None
        if self.inventory.publish(devices):
            self._observer.published(self.inventory.snapshot, since)
            self._log_change(self.inventory.snapshot, seconds)

    async def update_host(self, timeout: float | None = None) -> None:
        """Let the backend update the host after a scan, unless it belongs to another plugin.

        A failure is logged and retried, and is part of ``problem``. It is not retried because of what it has changed.
        """
        if self._held or self._clock() < self._update_due:
            return
        self._update_due = self._clock() + self._timings.retry
        result: Literal["ok", "failed"] = "failed"
        try:
            await self._updating.run(self.backend.update_host, timeout)
            result, self._update_due = "ok", 0.0
        except (OSError, PluginError):
            pass
        finally:
            self._observer.host_updated(result)
            self._set_due(scanned=True)

    async def close(self, *others: Awaitable[object], close_backend: bool) -> None:
        """Release everything, side by side with ``others``; call ``Backend.close`` if ``close_backend``.

        It runs in the worker thread, after the call that runs there now. What has not ended at the deadline of
        ``stop``, because a call hangs or the processors are busy, is logged and left: the file events are released when
        it ends. Other errors of the host are logged as well.
        """
        self.files.unsubscribe(*self._subscriptions)
        if self._own_files:
            self.files.close()
        close: Callable[[], None] = self._close_all if close_backend else self._close_subscriptions
        closing = [self.worker.run(close, self._stop.remaining, label="close"), *others]
        results = await asyncio.gather(*closing, return_exceptions=True)
        self.worker.close(self._close_subscriptions)
        for error in results:
            if isinstance(error, WorkerTimeoutError):
                LOG.warning("close is overdue, leaving it", extra={"error": str(error)})
            elif isinstance(error, (OSError, PluginError)):
                LOG.error("close failed", extra={"error": str(error)})
            elif isinstance(error, BaseException):
                raise error

    async def _until_due(self) -> None:
        """Wait until a scan is due, after changes or without any, or ``stop`` is set."""
        timeout = max(0.0, self._due - self._clock())
        await self._clock.wait(self._changes.changed, self._stop, timeout=timeout)
        if self._changes.changed.is_set():
            await debounce(self._changes.changed, self._timings.quiet, self._timings.longest_delay)

    def _scan(self) -> Sequence[Device]:
        """Scan, and return the devices. Runs in the worker thread.

        Directories are watched before they are scanned, so that no change is missed. If the scan has found further
        ones, because links lead into them, another scan follows.
        """
        started = time.thread_time()
        directories = self.backend.directories()
        self._changes.watch(directories)
        self.backend.scan()
        if not self.backend.directories() <= directories:
            self._changes.notify()
        found = self.backend.devices()
        self._cost = time.thread_time() - started
        return found

    def _set_due(self, *, scanned: bool) -> None:
        """Set when the next scan without a change is due. The backend is asked only if the last scan succeeded."""
        pauses = [self._changes.interval]
        if not scanned or self.problem:
            pauses.append(self._timings.retry)
        elif (seconds := self.backend.seconds_until_scan()) is not None:
            pauses.append(max(seconds, 0.0))
        self._due = self._clock() + min(pauses)

    def _close_all(self) -> None:
        self._close_subscriptions()
        self.backend.close()

    def _close_subscriptions(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()

    def _log_change(self, snapshot: Snapshot, seconds: float) -> None:
        reasons = collections.Counter(device.reason for device in snapshot.unhealthy)
        counts = {
            "revision": snapshot.revision,
            "devices": len(snapshot.devices),
            "healthy": snapshot.healthy,
            "unhealthy": ",".join(f"{reason}:{count}" for reason, count in sorted(reasons.items())),
        }
        LOG.info("devices changed", extra={**counts, "duration_ms": milliseconds(seconds)})
        truncated = snapshot.truncated
        self._truncated.set(f"{truncated} devices" if truncated else "", truncated=truncated, **counts)
