"""Keeps the inventory of a resource current: a scan of the whole host after each change, and at intervals.

A file event, a mount event or a timer wakes the loop. It scans, publishes the result, and lets the backend update the
host. Nothing is remembered from one scan to the next: whatever was missed is found by the next one.
"""

import asyncio
import collections
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from aosp_plugin.framework import conditions as kinds
from aosp_plugin.framework.backend import Backend, Found
from aosp_plugin.framework.conditions import Condition, Kind
from aosp_plugin.framework.errors import PluginError, WorkerTimeoutError
from aosp_plugin.framework.file_events import FileEvents, Subscription
from aosp_plugin.framework.inventory import Changes, Inventory, Snapshot
from aosp_plugin.framework.metrics import Result
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service.logs import milliseconds
from aosp_plugin.framework.timing import Stop, background_task, debounce
from aosp_plugin.framework.worker import Worker, report_hangs

LOG = logging.getLogger(__name__)

REST = 3
"""The pause after a scan, as a multiple of its processor time: a device that flaps costs a quarter of a processor."""


SCAN, UPDATE = "device scan", "host update"
"""The labels of the two calls, for people."""

NAMED_IN_LOG = 10
"""Devices that a log record about a change names."""


class ScanLoop:
    """Scans a backend in a worker thread of its own, and owns what the last scan has found. For one event loop."""

    def __init__(
        self,
        backend: Backend[Any],
        stop: Stop,
        runtime: Runtime,
        *,
        is_listed: bool = True,
    ) -> None:
        """``stop`` ends ``run``.

        ``is_listed``: the kubelet gets the devices as one list, which has a limit.
        """
        timings, conditions = runtime.timings, runtime.conditions
        self.backend = backend
        self._conditions = conditions
        self._is_listed = is_listed
        self.worker = Worker(backend.resource_name)
        self.inventory = Inventory()
        self.files = runtime.files if runtime.files is not None else FileEvents(timings, conditions)
        self._own_files = runtime.files is None
        self._subscriptions: list[Subscription] = []
        self._changes = self.subscribe()
        self._stop = stop
        self._metrics = runtime.metrics
        self._timings = timings
        self._clock = runtime.clock
        self._updates_paused = False
        self._due = 0.0
        self._update_due = 0.0
        """When the host update that has failed or hangs may be repeated; 0 if the last one has succeeded."""
        self._directories: frozenset[str] = frozenset()
        """The directories of the last scan. For the worker thread."""
        self._cost = 0.0
        """Processor time of the last scan, in seconds."""
        self._first_change: float | None = None

    def subscribe(self) -> Subscription:
        """Return a subscription to file events, to be used in ``worker``. ``close`` closes it."""
        subscription = self.files.subscribe()
        self._subscriptions.append(subscription)
        return subscription

    def trigger(self) -> None:
        """Request a scan without a change."""
        self._changes.notify()

    def pause_updates(self, paused: bool) -> None:  # noqa: FBT001 - a callback
        """Keep scanning, but leave the host to another plugin of the resource while ``paused``."""
        self._updates_paused = paused
        self.trigger()

    async def prepare(self) -> None:
        """Scan the devices for the first time, without any other effect on the host.

        Raises OSError and PluginError if the scan fails, and WorkerTimeoutError if it takes more than ``Timings.hang``.
        """
        await self.scan(self._timings.hang)

    async def start(self) -> None:
        """Scan and update the host before the first registration, and scan again if the update has changed the devices.

        So all devices are published at once, without those that a failed update makes unusable. Only an error of the
        first scan is raised: another plugin may have been stopped for this one.
        """
        if self.inventory.found is None and self.worker.running() is None:  # a scan that hangs is not waited for twice
            with contextlib.suppress(WorkerTimeoutError):
                await self.prepare()
        if self.inventory.found is None:
            return
        if await self.update_host(self._timings.hang) or self.backend.creates_devices:
            with contextlib.suppress(OSError, PluginError):  # logged and retried
                await self.scan(self._timings.hang)

    async def run(self) -> None:
        """Keep the inventory current until ``stop`` is set. A failed scan leaves the inventory as it was."""
        limit = self._timings.hang
        hangs = report_hangs(self.worker, self._conditions, self.backend.resource_name, limit, self._hang_of)
        async with background_task(hangs):
            while not self._stop.is_set():
                timeout = max(0.0, self._due - self._clock())
                await self._clock.wait(self._changes.changed, self._stop, timeout=timeout)
                if self._changes.changed.is_set():
                    await debounce(self._changes.changed, self._timings.quiet, self._timings.longest_delay)
                if self._stop.is_set():
                    return
                with contextlib.suppress(OSError, PluginError):  # logged and retried
                    await self.scan()
                    await self.update_host()
                await self._clock.wait(self._stop, timeout=min(REST * self._cost, self._timings.retry))

    async def scan(self, timeout: float | None = None) -> None:
        """Scan once, and publish the result. Raises OSError and PluginError; WorkerTimeoutError after ``timeout``."""
        started = self._clock()
        self._due = started
        self._first_change = self._first_change or self._changes.first_change()
        outcome: Result = "failed"
        due: float | None = self._timings.retry
        try:
            with self._reporting(kinds.SCAN_FAILED, SCAN):
                found = await self.worker.run(self._scan, timeout, label=SCAN)
            outcome, due = "ok", found.due
        finally:
            seconds = self._clock() - started
            self._metrics.scans.labels(self.backend.resource_name, outcome).inc()
            self._metrics.scan_duration.labels(self.backend.resource_name).observe(seconds)
            self._set_due(due)
        since, self._first_change = self._first_change, None
        before = self.inventory.snapshot
        if self.inventory.publish(found, since):
            self._metrics.count_devices(self.backend.resource_name, self.inventory.snapshot)
            self._log_change(before, self.inventory.snapshot, seconds)

    async def update_host(self, timeout: float | None = None) -> bool:
        """Let the backend update the host after a scan, unless the host is left to another plugin.

        Returns whether the update has changed the devices. A failure is logged and retried, and is a condition. Changes
        that the failed update has made do not trigger a retry.
        """
        if self._updates_paused or self._clock() < self._update_due:
            return False
        self._update_due = self._clock() + self._timings.retry
        changed, found = False, self.inventory.found
        result: Result = "failed"
        try:
            with self._reporting(kinds.UPDATE_FAILED, UPDATE):
                update = partial(self.backend.update_host, found)
                changed = await self.worker.run(update, timeout, label=UPDATE)
            result, self._update_due = "ok", 0.0
        except (OSError, PluginError):
            pass
        finally:
            self._metrics.host_updates.labels(self.backend.resource_name, result).inc()
            self._set_due(0.0 if changed else found.due)
        return changed

    async def close(self, *others: Awaitable[object]) -> None:
        """Release everything, side by side with ``others``, and call ``Backend.close``.

        ``Backend.close`` runs in the worker thread, after the call that runs there now. A part that has not ended at
        the deadline of ``stop``, because a call hangs or the processors are busy, is logged and abandoned; the file
        events are released when it ends. Errors of the host are logged.
        """
        self.files.unsubscribe(*self._subscriptions)
        if self._own_files:
            self.files.close()
        closing = [self.worker.run(self._close_all, self._stop.remaining, label="close"), *others]
        results = await asyncio.gather(*closing, return_exceptions=True)
        self.worker.close(self._close_subscriptions)
        for error in results:
            if isinstance(error, WorkerTimeoutError):
                LOG.warning("close is overdue, leaving it", extra={"error": str(error)})
            elif isinstance(error, (OSError, PluginError)):
                LOG.error("close failed", extra={"error": str(error)})
            elif isinstance(error, BaseException):
                raise error

    def _scan(self) -> Found:
        """Scan. Runs in the worker thread.

        Directories are watched before they are scanned, so that no change is missed. If the scan has found further
        directories, because links lead into them, another scan follows. The first scan finds all of them: its devices
        are published without waiting for the next scan.
        """
        started = time.thread_time()
        self._changes.watch(self._directories)
        found: Found = self.backend.scan()
        if not found.directories <= self._directories:
            self._changes.watch(found.directories)
            if self._directories:
                self._changes.notify()
            else:
                retry = self._timings.retry
                found = replace(found, due=retry if found.due is None else min(retry, found.due))
        self._directories = found.directories
        self._cost = time.thread_time() - started
        return found

    def _set_due(self, seconds: float | None) -> None:
        """Set when the next scan without a change is due; None if no time is known."""
        pauses = [self._changes.interval]
        if self._update_due:
            pauses.append(self._timings.retry)
        elif seconds is not None:
            pauses.append(max(seconds, 0.0))
        self._due = self._clock() + min(pauses)

    @contextlib.contextmanager
    def _reporting(self, fails: Kind, label: str) -> Iterator[None]:
        """Report whether the call inside the context fails; one that takes too long is reported as a hang."""
        resource = self.backend.resource_name
        try:
            yield
        except WorkerTimeoutError:
            raise
        except (OSError, PluginError) as error:
            self._conditions.set(fails, f"{label} failed: {error}", resource=resource, error=str(error))
            raise
        self._conditions.set(fails, "", resource=resource)

    def _hang_of(self, call: str) -> Kind:
        """Return the kind of a hang, and count that of a scan."""
        if call == SCAN:
            self._metrics.scans.labels(self.backend.resource_name, "hung").inc()
        return {SCAN: kinds.SCAN_HANGS, UPDATE: kinds.UPDATE_HANGS}.get(call, kinds.HOST_HANGS)

    def _close_all(self) -> None:
        self._close_subscriptions()
        self.backend.close()

    def _close_subscriptions(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()

    def _log_change(self, before: Snapshot, snapshot: Snapshot, seconds: float) -> None:
        reasons = collections.Counter(device.reason for device in snapshot.unhealthy)
        counts = {
            "revision": snapshot.revision,
            "devices": len(snapshot.devices),
            "healthy": snapshot.healthy,
            "unhealthy": ",".join(f"{reason}:{count}" for reason, count in sorted(reasons.items())),
        }
        changes = snapshot.changes_since(before)
        changes = changes if before.revision else changes._replace(added=())  # at the start, all of them
        changed = {"changed": _named(changes), **_causes(snapshot, changes)}
        LOG.info("devices changed", extra={**counts, **changed, "duration_ms": milliseconds(seconds)})
        if self._is_listed:
            truncated = snapshot.truncated
            text = f"{truncated} devices do not fit into the kubelet's 4 MiB message limit"
            found = [Condition(kinds.TRUNCATED, text, fields={"truncated": truncated, **counts})] if truncated else []
            self._conditions.replace("device list", self.backend.resource_name, found)


def _named(changes: Changes) -> str:
    """Return the first changed devices with their present states, the worst first."""
    now = {device_id: reason for reason, ids in changes.unhealthy.items() for device_id in ids}
    for what, ids in (("removed", changes.removed), ("healthy", changes.healthy), ("new", changes.added)):
        now |= {device_id: what for device_id in ids if device_id not in now}
    first = [f"{device_id}:{what}" for device_id, what in itertools.islice(now.items(), NAMED_IN_LOG)]
    more = len(now) - len(first)
    return ",".join([*first, *([f"{more} more"] if more else [])])


def _causes(snapshot: Snapshot, changes: Changes) -> dict[str, str]:
    """Return a field with what is known of the first unhealthy devices beyond their reasons, such as who has them."""
    first = itertools.islice(itertools.chain.from_iterable(changes.unhealthy.values()), NAMED_IN_LOG)
    details = [snapshot.devices[device_id].detail for device_id in first if snapshot.devices[device_id].detail]
    return {"causes": "; ".join(dict.fromkeys(details))} if details else {}
