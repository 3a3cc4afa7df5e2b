"""Keeps the claims of a driver as they should be: after file events, periodically, and after a start of the kubelet.

Each round makes devices and specs match the records. A lost spec is written again as soon as its file event arrives:
within one boot, no kubelet asks for it again. A claim that is gone is unprepared without the kubelet, which may have
lost its own record of it.
"""

import asyncio
import time

from aosp_plugin.framework.aio import debounce, wait_any
from aosp_plugin.framework.dra.claims import Claims
from aosp_plugin.framework.events.file_events import Subscription
from aosp_plugin.framework.timings import DEFAULT, Timings

QUIET, CAP = 0.05, 1.0
"""Seconds without a file event that end a burst, and seconds after which claims are repaired although it goes on."""


class Reconciler:
    """Reconciles the claims of one driver. Belongs to the event loop."""

    def __init__(self, claims: Claims, files: Subscription, stop: asyncio.Event, timings: Timings = DEFAULT) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``."""
        self._claims = claims
        self._files = files
        self._stop = stop
        self._timings = timings
        self._requested = asyncio.Event()
        self._requested.set()  # the process may have been away for long
        self._repair_due = self._ask_due = self._ask_all_due = time.monotonic()

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
        """Repair what is on the host; ask the API server for the claims that are due, all of them after ``trigger``."""
        if self._requested.is_set():
            self._ask_due = self._ask_all_due = 0.0
            self._requested.clear()
        self._files.changed.clear()
        is_repaired = await self._claims.repair(before=lambda: self._files.watch([self._claims.directory]))
        pause = self._timings.claim_round if is_repaired else min(self._timings.claim_retry, self._timings.claim_round)
        self._repair_due = time.monotonic() + pause
        if time.monotonic() >= self._ask_due:
            await self._ask_for_claims()

    async def _ask_for_claims(self) -> None:
        """Ask for all claims, or between these times for those that were gone; one after another."""
        now = time.monotonic()
        everything, gone = now >= self._ask_all_due, self._claims.gone
        self._ask_due = now + self._timings.claim_round
        if everything:
            self._ask_all_due = now + self._timings.claim_ask
        for record in [*self._claims.prepared.values()]:
            if everything or record.uid in gone:
                is_needed = await self._claims.ask(record, self._timings.claim_answer)
                if is_needed is False:
                    self._repair_due = now  # which may release it
                if is_needed is None or self._stop.is_set():
                    return  # the API server does not answer
