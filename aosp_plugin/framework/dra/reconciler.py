"""Keeps the claims of a driver as they should be: after file events, periodically, and after a start of the kubelet.

Each round makes devices and specs match the records. A lost spec is written again as soon as its file event arrives:
within one boot, no kubelet asks for it again. A claim that is gone is unprepared without the kubelet, which may have
lost its own record of it.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.aio import debounce, wait_any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aosp_plugin.framework.dra.allocations import ClaimRecord
    from aosp_plugin.framework.dra.claims import Claims
    from aosp_plugin.framework.events.file_events import Subscription

QUIET, CAP = 0.05, 1.0
"""Seconds without a file event that end a burst, and seconds after which claims are repaired although it goes on."""

AT_ONCE = 8
"""Claims for which the API server is asked at the same time."""


class ReconcileTimings(NamedTuple):
    """Times in seconds."""

    round: float = 60.0
    """Between two rounds."""
    gone: float = 30.0
    """How long a claim must have been gone, in two rounds in a row, before it is unprepared without the kubelet."""
    ask: float = 600.0
    """Between two questions for the same claim, at the longest; one claim is asked for in each round. Each is a request
    to the API server, from every node. A claim for whose device another one waits is asked for at once anyway."""
    answer: float = 10.0
    """How long to wait for the API server."""
    retry: float = 5.0
    """From a failed round to the next."""


DEFAULT_TIMINGS = ReconcileTimings()


class Reconciler:
    """Reconciles the claims of one driver. Belongs to the event loop."""

    def __init__(
        self, claims: Claims, files: Subscription, stop: asyncio.Event, timings: ReconcileTimings = DEFAULT_TIMINGS
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``."""
        self._claims = claims
        self._files = files
        self._stop = stop
        self._timings = timings
        self._requested = asyncio.Event()
        self._requested.set()  # the process may have been away for long
        self._asked: dict[str, float] = {}
        self._repair_due = self._ask_due = time.monotonic()

    def trigger(self) -> None:
        """Request a round about all claims, for example after a restart of the kubelet."""
        self._requested.set()

    async def run(self) -> None:
        """Reconcile until ``stop`` is set. Failures are logged, retried, and in ``Claims.problem`` or ``notice``."""
        while not self._stop.is_set():
            pause = min(self._repair_due - time.monotonic(), self._files.interval)
            await wait_any(self._files.changed, self._requested, self._stop, timeout=max(0.0, pause))
            if self._stop.is_set():
                return
            if not self._requested.is_set():
                await debounce(self._files.changed, QUIET, CAP)
            await self.round()

    async def round(self) -> None:
        """Repair what is on the host; ask the API server for claims, about all of them after ``trigger``."""
        everything = self._requested.is_set()
        self._requested.clear()
        self._files.changed.clear()
        repaired = await self._claims.repair(before=lambda: self._files.watch([self._claims.directory]))
        now = time.monotonic()
        self._repair_due = now + (self._timings.round if repaired else min(self._timings.retry, self._timings.round))
        if everything or now >= self._ask_due:
            self._ask_due = now + self._timings.round
            await self._ask_for_claims(everything=everything)

    async def _ask_for_claims(self, *, everything: bool) -> None:
        records = list(self._claims.prepared.values())
        self._asked = {record.uid: self._asked[record.uid] for record in records if record.uid in self._asked}
        chosen = records if everything else self._chosen(records)
        for start in range(0, len(chosen), AT_ONCE):
            answers = await asyncio.gather(*map(self._ask, chosen[start : start + AT_ONCE]))
            if self._stop.is_set() or all(answer is None for answer in answers):
                return  # the API server does not answer

    def _chosen(self, records: Sequence[ClaimRecord]) -> Sequence[ClaimRecord]:
        """Return the claims to ask for: those that were gone, and some of the others, the longest unasked first."""
        count = math.ceil(len(records) * self._timings.round / self._timings.ask)
        oldest = sorted(records, key=lambda record: self._asked.get(record.uid, -math.inf))[:count]
        uids = {record.uid for record in oldest} | self._claims.gone
        return [record for record in records if record.uid in uids]

    async def _ask(self, record: ClaimRecord) -> bool | None:
        """Ask the API server for a claim, and unprepare it if it has been gone for long enough. None: no answer."""
        needed = await self._claims.release_if_gone(record, self._timings.gone, self._timings.answer)
        if needed is not None:
            self._asked[record.uid] = time.monotonic()
        return needed
