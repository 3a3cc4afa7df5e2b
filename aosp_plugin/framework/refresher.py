"""Keeps the inventory current: a scan after each burst of file events, and a periodic one."""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.devices import valid_devices
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.host_calls import HostCalls
from aosp_plugin.framework.observer import NULL_OBSERVER, milliseconds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping
    from typing import Literal

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.devices import Devices
    from aosp_plugin.framework.events.subscription import Subscription
    from aosp_plugin.framework.inventory import Inventory, Snapshot
    from aosp_plugin.framework.observer import Observer
    from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

FULL_SCAN_FACTOR, LONGEST_FULL_SCAN_PAUSE = 1000, 600.0
"""The pause between periodic full scans, as a multiple of the duration of the last one, and its upper limit in seconds.
Every change causes an event; full scans compensate for missed events and use at most a thousandth of a processor as
long as a scan takes less than 0.6 s."""

RETRY_INTERVAL = 1.0
"""Seconds from a failed scan or host update to the next one. No event reports that disk space or descriptors are
available again."""

SHORTEST_PAUSE = 0.1
"""Seconds between two scans that are due without an event, whatever ``Backend.seconds_until_scan`` returns."""


class ScanResult(NamedTuple):
    """What a scan in the worker thread found."""

    devices: Devices
    problems: Mapping[str, str]
    """Why a device was skipped, by ID."""
    full_seconds: float | None
    """Duration of the last full scan of it; None if all were incremental."""


class Refresher:
    """Runs the scans of a backend in a worker thread, publishes their results, and lets the backend update the host."""

    def __init__(
        self,
        backend: Backend,
        inventory: Inventory,
        files: Subscription,
        worker: Worker,
        stop: asyncio.Event,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """``files``, which is paced, is used by this object alone, in ``worker``; ``stop`` ends ``run``."""
        self._backend = backend
        self._inventory = inventory
        self._files = files
        self._calls = HostCalls(worker, observer)
        self._stop = stop
        self._observer = observer
        self._held = False
        self._full_scan_requested = True
        self._full_scan_due = 0.0
        self._scan_due: float | None = None
        self._logged_truncated = 0
        self._logged_id_problems: Mapping[str, str] = {}

    @property
    def problem(self) -> str:
        """Why the inventory or the host may be outdated; empty if both are current. May be read in any thread."""
        return self._calls.problem

    def trigger(self) -> None:
        """Request a full scan without a file event."""
        self._full_scan_requested = True
        self._files.notify()

    def hold(self, *, held: bool) -> None:
        """Scan, but leave the host to another plugin of the resource while ``held``."""
        self._held = held
        self.trigger()

    async def scan(self, timeout: float | None = None) -> None:
        """Scan once, and publish the result. Raises OSError and PluginError; WorkerTimeoutError after ``timeout``.

        Directories are watched before they are scanned, so that no change is missed. If the scan finds further
        directories, because links lead into them, another scan follows.
        """
        started = time.monotonic()
        full, self._full_scan_requested = self._full_scan_requested, False
        self._files.release(everything=full)
        outcome: Literal["ok", "failed"] = "failed"
        try:
            result = await self._calls.run("device scan", partial(self._scan_all_directories, full=full), timeout)
            outcome = "ok"
        except BaseException:
            self._full_scan_requested = True  # the set of changed files is lost
            raise
        finally:
            seconds = time.monotonic() - started
            self._observer.scanned(outcome, seconds)
        self._set_timers(result)
        self._log_id_problems(result.problems)
        since = self._files.first_change()  # of a failed scan, if one left a change unpublished
        if self._inventory.publish(result.devices):
            self._observer.published(self._inventory.snapshot, since)
            self._log_change(self._inventory.snapshot, seconds)

    async def update_host(self, timeout: float | None = None) -> None:
        """Let the backend update the host after a scan, unless it belongs to another plugin.

        A failure is logged and retried, and is part of ``problem``.
        """
        if self._held:
            return
        result: Literal["ok", "failed"] = "failed"
        try:
            await self._calls.run("host update", self._backend.update_host, timeout)
            result = "ok"
        except (OSError, PluginError):
            pass
        finally:
            self._observer.host_updated(result)
            self._set_scan_due()

    async def run(self) -> None:
        """Keep the inventory current until ``stop`` is set. A failed scan leaves the inventory as it was."""
        while not self._stop.is_set():
            await self._until_due()
            self._request_due_scan()
            if self._stop.is_set():
                return
            with contextlib.suppress(OSError, PluginError):  # which is logged, and retried
                await self.scan()
                await self.update_host()

    async def _until_due(self) -> None:
        """Wait until a scan is due, after changes or without any, or ``stop`` is set."""
        end = time.monotonic() + self._pause()
        while not self._stop.is_set():
            self._files.changed.clear()
            due = self._files.due()
            seconds = (end if due is None else min(due, end)) - time.monotonic()
            if seconds <= 0:
                return
            await wait_any(self._files.changed, self._stop, timeout=seconds)

    def _scan_all_directories(self, *, full: bool) -> ScanResult:
        """Scan until there are no further directories: the changed files, or everything. Runs in the worker thread."""
        changed: frozenset[str] | None = None if full else frozenset()
        full_seconds = None
        while True:
            directories = self._backend.directories()
            self._files.watch(directories, check_all=full)
            full = False
            new_changes = self._files.changes()
            changed = None if changed is None or new_changes is None else changed | new_changes
            started = time.monotonic()
            self._backend.scan(changed)
            self._files.scanned()
            if changed is None:
                full_seconds = time.monotonic() - started
            if self._backend.directories() == directories:
                return ScanResult(*valid_devices(self._backend.devices()), full_seconds)
            if changed is None:  # what was read before its directory was watched is among the next changes
                changed = frozenset()

    def _set_timers(self, result: ScanResult) -> None:
        """Set when the next scans without an event are due."""
        now = time.monotonic()
        if result.full_seconds is not None:
            pause = min(FULL_SCAN_FACTOR * result.full_seconds, LONGEST_FULL_SCAN_PAUSE)
            self._full_scan_due = now + max(pause, self._files.interval)
        self._set_scan_due()

    def _set_scan_due(self) -> None:
        """Set when the backend requires the next scan without an event."""
        seconds = self._backend.seconds_until_scan()
        self._scan_due = None if seconds is None else time.monotonic() + max(seconds, SHORTEST_PAUSE)

    def _pause(self) -> float:
        """Return the seconds until the next scan without an event."""
        pauses = [self._files.interval, self._full_scan_due - time.monotonic()]
        if self._calls.failed:
            pauses.append(RETRY_INTERVAL)
        if self._scan_due is not None:
            pauses.append(self._scan_due - time.monotonic())
        return max(0.0, min(pauses))

    def _request_due_scan(self) -> None:
        """Make the next scan a full one if one is due."""
        now = time.monotonic()
        if now >= self._full_scan_due:
            self._full_scan_requested = True
        if self._scan_due is not None and now >= self._scan_due:
            self._scan_due = None

    def _log_id_problems(self, problems: Mapping[str, str]) -> None:
        """Log each new problem of a device that was skipped."""
        for device_id, problem in problems.items():
            if self._logged_id_problems.get(device_id) != problem:
                LOG.warning("device skipped", extra={"device": device_id, "reason": problem})
        self._logged_id_problems = problems

    def _log_change(self, snapshot: Snapshot, seconds: float) -> None:
        reasons = collections.Counter(device.reason for device in snapshot.unhealthy)
        counts = {
            "revision": snapshot.revision,
            "devices": len(snapshot.devices),
            "healthy": snapshot.healthy,
            "unhealthy": ",".join(f"{reason}:{count}" for reason, count in sorted(reasons.items())),
        }
        LOG.info("devices changed", extra={**counts, "duration_ms": milliseconds(seconds)})
        if snapshot.truncated and snapshot.truncated != self._logged_truncated:
            extra = {"truncated": snapshot.truncated, **counts}
            LOG.error("device list truncated at the kubelet's 4 MiB limit", extra=extra)
        elif self._logged_truncated and not snapshot.truncated:
            LOG.info("device list no longer truncated", extra=counts)
        self._logged_truncated = snapshot.truncated
