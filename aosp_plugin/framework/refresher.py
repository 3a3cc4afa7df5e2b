"""Keeping the inventory as the host is: a look after each burst of file events, and one now and then."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import background_task, debounce, run_in_daemon_thread, wait_any
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.observer import NULL_OBSERVER, milliseconds

if TYPE_CHECKING:
    from typing import Literal

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.events.file_events import Subscription
    from aosp_plugin.framework.inventory import Inventory, Snapshot
    from aosp_plugin.framework.observer import Observer

LOG = logging.getLogger(__name__)

QUIET, CAP = 0.01, 0.25
"""Seconds without an event that end a burst, and seconds after which a burst is looked at though it goes on: the
kubelet writes and syncs its checkpoint at every message."""

LONGEST_QUIET, LONGEST_CAP = 0.08, 2.0
"""What these grow to while events keep coming, by twos: a burst of any length is told in few messages, the last one
soon after its end, and a node that flaps costs a message in two seconds."""

CALM = 0.25
"""Seconds without an event after which the next one is another burst's."""

FULL_SCAN_FACTOR = 1000
"""How many times as long as a look at everything took there is none without a cause. Events tell of every change; this
is for a defect of theirs, and takes a thousandth of a processor at the most, however many devices there are."""

AGAIN = 1.0
"""Seconds from a look that failed to the next one: no event tells that there is space or a descriptor again."""

HUNG_AFTER = 30.0
"""Seconds after which a look that has not returned is a fault of the process."""


class Refresher:
    """Calls the backend's ``refresh`` and publishes what comes of it."""

    def __init__(
        self,
        backend: Backend,
        inventory: Inventory,
        files: Subscription,
        stop: asyncio.Event,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self._backend = backend
        self._inventory = inventory
        self._files = files
        self._stop = stop
        self._observer = observer
        self._everything = True
        self._everything_due = 0.0
        self._scans_in_a_row = 0
        self._last_look = -CALM
        self._looking_since: float | None = None
        self._changed_since: float | None = None
        self._failure = ""
        self._left_out = 0

    @property
    def problem(self) -> str:
        """Why the inventory may not be as the host is; empty where it is. To be asked from any thread."""
        since = self._looking_since
        if since is not None and time.monotonic() - since > HUNG_AFTER:
            return f"the look at the devices has not returned for {time.monotonic() - since:.0f} s"
        return self._failure

    def trigger(self) -> None:
        """Have a look at everything taken though no event came."""
        self._everything = True
        self._files.changed.set()

    async def look(self) -> None:
        """Look once, and publish. Raises OSError and PluginError.

        Directories are watched before they are looked at, so that no change falls between; a look that finds
        further directories, as links lead into them, is followed by another.
        """
        started = time.monotonic()
        result: Literal["ok", "failed"] = "failed"
        try:
            await self._scan()
            result = "ok"
        except BaseException:
            self._everything = True  # what had changed is not known any longer
            raise
        finally:
            seconds = time.monotonic() - started
            self._observer.scanned(result, seconds)
        since, self._changed_since = self._changed_since, None
        if self._inventory.publish(self._backend.devices()):
            self._observer.published(self._inventory.snapshot, since)
            self._log(self._inventory.snapshot, seconds)

    async def _scan(self) -> None:
        """Have the backend look until there is no further directory: at what changed, or at everything."""
        changed: frozenset[str] | None = None if self._everything else frozenset()
        self._everything = False
        while True:
            self._files.changed.clear()
            first_change = self._files.first_change()
            if self._changed_since is None:  # else a look failed that had to find what changed then
                self._changed_since = first_change
            directories = self._backend.directories()
            self._files.watch(directories)
            more = self._files.changes()
            changed = None if changed is None or more is None else changed | more
            await self._refresh(changed)
            if self._backend.directories() == directories:
                return

    async def _refresh(self, changed: frozenset[str] | None) -> None:
        """Have the backend look, and say so where it does not return."""
        started = self._looking_since = time.monotonic()
        try:
            async with background_task(run_in_daemon_thread(partial(self._backend.refresh, changed), "look")) as look:
                done, _ = await asyncio.wait({look}, timeout=HUNG_AFTER)
                if not done:
                    self._observer.scanned("hung", time.monotonic() - started)
                    LOG.error("the look at the devices does not return", extra=_since(started))
                await look
        finally:
            self._looking_since = None
        if changed is None:
            self._everything_due = time.monotonic() + FULL_SCAN_FACTOR * (time.monotonic() - started)
        if not done:
            LOG.info("the look at the devices has returned", extra=_since(started))

    async def run(self) -> None:
        """Keep the inventory up to date until ``stop`` is set. A look that fails leaves it as it was."""
        while not self._stop.is_set():
            interval = min(self._files.interval, AGAIN) if self._failure else self._files.interval
            if await wait_any(self._files.changed, self._stop, timeout=interval):
                await self._settled()
            elif time.monotonic() >= self._everything_due:
                self._everything = True
            if self._stop.is_set():
                return
            try:
                await self.look()
            except (OSError, PluginError) as error:
                self._failed(str(error))
            else:
                self._recovered()
            self._last_look = time.monotonic()

    async def _settled(self) -> None:
        """Wait until the burst that has begun is over, or has to be looked at though it is not."""
        calm = time.monotonic() - self._last_look >= CALM
        self._scans_in_a_row = 0 if calm else self._scans_in_a_row + 1
        await debounce(self._files.changed, *pace(self._scans_in_a_row))

    def _failed(self, error: str) -> None:
        failure = f"the devices can't be looked at: {error}"
        if failure != self._failure:
            self._failure = failure
            LOG.error("the devices can't be looked at", extra={"error": error})

    def _recovered(self) -> None:
        if self._failure:
            self._failure = ""
            LOG.info("the devices can be looked at again")

    def _log(self, snapshot: Snapshot, seconds: float) -> None:
        ill = collections.Counter(device.reason for device in snapshot.unhealthy)
        counts = {
            "revision": snapshot.revision,
            "devices": len(snapshot.devices),
            "healthy": snapshot.healthy,
            "unhealthy": ",".join(f"{why}:{n}" for why, n in sorted(ill.items())),
        }
        LOG.info("devices changed", extra={**counts, "duration_ms": milliseconds(seconds)})
        if snapshot.truncated and snapshot.truncated != self._left_out:
            LOG.error(
                "devices are left out, as the kubelet takes no message over 4 MiB; spread them over several resources",
                extra={"truncated": snapshot.truncated, **counts},
            )
        elif self._left_out and not snapshot.truncated:
            LOG.info("all devices fit into the message again", extra=counts)
        self._left_out = snapshot.truncated


def pace(scans_in_a_row: int) -> tuple[float, float]:
    """Return how long events have to pause for a look, and how long one waits for that at the most, in seconds."""
    growth = 2 ** min(scans_in_a_row, 10)
    return min(QUIET * growth, LONGEST_QUIET), min(CAP * growth, LONGEST_CAP)


def _since(started: float) -> dict[str, float]:
    return {"duration_ms": milliseconds(time.monotonic() - started)}
