"""Keeps the inventory current: a scan after each burst of file events, and a periodic one."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import background_task, debounce, run_in_daemon_thread, wait_any
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.inventory import valid_devices
from aosp_plugin.framework.observer import NULL_OBSERVER, milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.events.file_events import Subscription
    from aosp_plugin.framework.inventory import Device, Inventory, Snapshot
    from aosp_plugin.framework.observer import Observer

LOG = logging.getLogger(__name__)

QUIET, CAP = 0.01, 0.25
"""Seconds without an event that end a burst, and seconds after which a scan starts although the burst goes on: the
kubelet writes and syncs its checkpoint at every message."""

LONGEST_QUIET, LONGEST_CAP = 0.08, 2.0
"""Upper limits of these two values, which double while events keep coming: a burst of any length leads to few messages,
the last one soon after its end, and a device that flaps leads to one message in two seconds."""

CALM = 0.25
"""Seconds without an event after which the next event starts a new burst."""

FULL_SCAN_FACTOR = 1000
"""The pause between periodic full scans, as a multiple of the duration of the last one. Every change causes an event;
full scans compensate for missed events and use at most a thousandth of a processor, for any number of devices."""

RETRY_INTERVAL = 1.0
"""Seconds from a failed scan to the next one. No event reports that disk space or descriptors are available again."""

HUNG_AFTER = 30.0
"""Seconds after which a scan that has not returned counts as hanging."""


class Refresher:
    """Runs the scans of a backend and publishes their results."""

    def __init__(
        self,
        backend: Backend,
        inventory: Inventory,
        files: Subscription,
        stop: asyncio.Event,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``."""
        self._backend = backend
        self._inventory = inventory
        self._files = files
        self._stop = stop
        self._observer = observer
        self._full_scan_requested = True
        self._full_scan_due = 0.0
        self._scans_in_a_row = 0
        self._last_scan_end = -CALM
        self._scan_started: float | None = None
        self._changed_since: float | None = None
        self._failure = ""
        self._logged_truncated = 0
        self._logged_id_problems: Mapping[str, str] = {}

    @property
    def problem(self) -> str:
        """Why the inventory may be outdated; empty if it is current. May be read in any thread."""
        started = self._scan_started
        if started is not None and time.monotonic() - started > HUNG_AFTER:
            return f"device scan has been hanging for {time.monotonic() - started:.0f} s"
        return self._failure

    def trigger(self) -> None:
        """Request a full scan without a file event."""
        self._full_scan_requested = True
        self._files.changed.set()

    async def scan(self) -> None:
        """Scan once, and publish the result. Raises OSError and PluginError.

        Directories are watched before they are scanned, so that no change is missed. If the scan finds further
        directories, because links lead into them, another scan follows.
        """
        started = time.monotonic()
        result: Literal["ok", "failed"] = "failed"
        try:
            await self._scan_all_directories()
            result = "ok"
        except BaseException:
            self._full_scan_requested = True  # the set of changed files is lost
            raise
        finally:
            seconds = time.monotonic() - started
            self._observer.scanned(result, seconds)
        since, self._changed_since = self._changed_since, None
        if self._inventory.publish(self._valid_devices()):
            self._observer.published(self._inventory.snapshot, since)
            self._log_change(self._inventory.snapshot, seconds)

    async def _scan_all_directories(self) -> None:
        """Scan until there are no further directories: the changed files, or everything."""
        changed: frozenset[str] | None = None if self._full_scan_requested else frozenset()
        self._full_scan_requested = False
        while True:
            self._files.changed.clear()
            first_change = self._files.first_change()
            if self._changed_since is None:  # otherwise, a failed scan left an older change unpublished
                self._changed_since = first_change
            directories = self._backend.directories()
            self._files.watch(directories)
            new_changes = self._files.changes()
            changed = None if changed is None or new_changes is None else changed | new_changes
            await self._scan_in_thread(changed)
            if self._backend.directories() == directories:
                return

    async def _scan_in_thread(self, changed: frozenset[str] | None) -> None:
        """Run the backend's scan in a thread, and log if it hangs."""
        started = self._scan_started = time.monotonic()
        try:
            async with background_task(run_in_daemon_thread(partial(self._backend.scan, changed), "scan")) as scan:
                done, _ = await asyncio.wait({scan}, timeout=HUNG_AFTER)
                if not done:
                    self._observer.scanned("hung", time.monotonic() - started)
                    LOG.error("device scan is hanging", extra=_duration(started))
                await scan
        finally:
            self._scan_started = None
        if changed is None:
            self._full_scan_due = time.monotonic() + FULL_SCAN_FACTOR * (time.monotonic() - started)
        if not done:
            LOG.info("device scan is no longer hanging", extra=_duration(started))

    def _valid_devices(self) -> Sequence[Device]:
        """Return the backend's devices with valid IDs, and log each new problem of the others."""
        devices, problems = valid_devices(self._backend.devices())
        for device_id, problem in problems.items():
            if self._logged_id_problems.get(device_id) != problem:
                LOG.warning("device skipped", extra={"device": device_id, "reason": problem})
        self._logged_id_problems = problems
        return devices

    async def run(self) -> None:
        """Keep the inventory current until ``stop`` is set. A failed scan leaves the inventory as it was."""
        while not self._stop.is_set():
            interval = min(self._files.interval, RETRY_INTERVAL) if self._failure else self._files.interval
            if await wait_any(self._files.changed, self._stop, timeout=interval):
                await self._end_of_burst()
            elif time.monotonic() >= self._full_scan_due:
                self._full_scan_requested = True
            if self._stop.is_set():
                return
            try:
                await self.scan()
            except (OSError, PluginError) as error:
                self._failed(str(error))
            else:
                self._recovered()
            self._last_scan_end = time.monotonic()

    async def _end_of_burst(self) -> None:
        """Wait until the burst of events is over, or must be scanned although it is not."""
        calm = time.monotonic() - self._last_scan_end >= CALM
        self._scans_in_a_row = 0 if calm else self._scans_in_a_row + 1
        await debounce(self._files.changed, *pace(self._scans_in_a_row))

    def _failed(self, error: str) -> None:
        failure = f"device scan failed: {error}"
        if failure != self._failure:
            self._failure = failure
            LOG.error("device scan failed, retrying", extra={"error": error})

    def _recovered(self) -> None:
        if self._failure:
            self._failure = ""
            LOG.info("device scan recovered")

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


def pace(scans_in_a_row: int) -> tuple[float, float]:
    """Return how long events must pause before a scan, and the longest wait for such a pause, in seconds."""
    growth = 2 ** min(scans_in_a_row, 10)
    return min(QUIET * growth, LONGEST_QUIET), min(CAP * growth, LONGEST_CAP)


def _duration(started: float) -> dict[str, float]:
    return {"duration_ms": milliseconds(time.monotonic() - started)}
