"""Keeps records, CDI specs, devices and claims of a driver consistent: after file events, and periodically.

A lost spec or checkpoint is written again as soon as its file event arrives: within one boot, no kubelet asks for it
again. A claim that is gone is unprepared without the kubelet, which may have lost its own record of it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.aio import debounce, wait_any
from aosp_plugin.framework.dra.claim_source import still_needed
from aosp_plugin.framework.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aosp_plugin.framework.dra.claim_source import ClaimSource
    from aosp_plugin.framework.dra.claims import Claims
    from aosp_plugin.framework.dra.records import ClaimRecord
    from aosp_plugin.framework.events.file_events import Subscription
    from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

QUIET, CAP = 0.05, 1.0
"""Seconds without a file event that end a burst, and seconds after which files are checked although it goes on."""

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
        self,
        claims: Claims,
        *,
        source: ClaimSource,
        driver: str,
        files: Subscription,
        worker: Worker,
        stop: asyncio.Event,
        timings: ReconcileTimings = DEFAULT_TIMINGS,
    ) -> None:
        """``files`` is used by this object alone, in ``worker``, which is that of ``claims``; ``stop`` ends ``run``."""
        self._claims = claims
        self._source = source
        self._driver = driver
        self._files = files
        self._worker = worker
        self._stop = stop
        self._timings = timings
        self._requested = asyncio.Event()
        self._requested.set()  # the process may have been away for long
        self._asked: dict[str, float] = {}
        self._gone: dict[str, tuple[ClaimRecord, float]] = {}
        self._failures: dict[str, str] = {}
        self._repair_due = self._ask_due = time.monotonic()

    @property
    def problem(self) -> str:
        """Why no claim can be reconciled; empty if they can. May be read in any thread."""
        return self._failures.get("") or self._claims.problem

    @property
    def notice(self) -> str:
        """Which single claims cannot be repaired or released; new ones can be prepared. May be read in any thread."""
        gone = [failure for uid, failure in self._failures.items() if uid]
        return "; ".join([*gone, *filter(None, [self._claims.notice])])

    def trigger(self) -> None:
        """Request a round about all claims, for example after a restart of the kubelet."""
        self._requested.set()

    async def run(self) -> None:
        """Reconcile until ``stop`` is set. Failures are logged, retried, and in ``problem`` or ``notice``."""
        while not self._stop.is_set():
            pause = min(self._repair_due - time.monotonic(), self._files.interval)
            await wait_any(self._files.changed, self._requested, self._stop, timeout=max(0.0, pause))
            if self._stop.is_set():
                return
            if self._requested.is_set() or time.monotonic() >= self._repair_due:
                await self.round()
            else:
                await debounce(self._files.changed, QUIET, CAP)
                await self._call(self._restore_files)

    async def round(self) -> None:
        """Repair what is on the host; ask the API server for claims, about all of them after ``trigger``."""
        everything = self._requested.is_set()
        self._requested.clear()
        self._files.changed.clear()
        repaired = await self._call(self._repair) and not self._claims.host.problems
        now = time.monotonic()
        self._repair_due = now + (self._timings.round if repaired else min(self._timings.retry, self._timings.round))
        if everything or now >= self._ask_due:
            self._ask_due = now + self._timings.round
            await self._ask_for_claims(everything=everything)

    async def _ask_for_claims(self, *, everything: bool) -> None:
        records = self._claims.prepared
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in records}
        self._gone = {uid: gone for uid, gone in self._gone.items() if records.get(uid) == gone[0]}
        for uid in [uid for uid in self._failures if uid and uid not in records]:
            self._set_failure(uid, "")
        chosen = list(records.values()) if everything else self._chosen(list(records.values()))
        for start in range(0, len(chosen), AT_ONCE):
            answers = await asyncio.gather(*map(self._ask, chosen[start : start + AT_ONCE]))
            if self._stop.is_set() or all(answer is None for answer in answers):
                return  # the API server does not answer

    def _chosen(self, records: Sequence[ClaimRecord]) -> Sequence[ClaimRecord]:
        """Return the claims to ask for: those that were gone, and some of the others, the longest unasked first."""
        count = math.ceil(len(records) * self._timings.round / self._timings.ask)
        oldest = sorted(records, key=lambda record: self._asked.get(record.uid, -math.inf))[:count]
        uids = {record.uid for record in oldest} | self._gone.keys()
        return [record for record in records if record.uid in uids]

    async def _ask(self, record: ClaimRecord) -> bool | None:
        """Ask the API server for a claim; unprepare it if it has been gone for long enough. None: no answer."""
        try:
            async with asyncio.timeout(self._timings.answer):
                needed = await still_needed(self._source, record, self._driver)
        except TimeoutError:
            needed = None
        now = time.monotonic()
        if needed is not None:
            self._asked[record.uid] = now
        if needed is not False:
            self._gone.pop(record.uid, None)
            return needed
        known = self._gone.setdefault(record.uid, (record, now))
        if known != (record, now) and now - known[1] >= self._timings.gone:
            try:
                await self._claims.release(record)
                self._set_failure(record.uid, "")
            except (OSError, PluginError) as error:
                self._set_failure(record.uid, f"claim {record.label} is gone, and cannot be unprepared: {error}")
        return needed

    async def _call(self, function: Callable[[], None]) -> bool:
        """Run a function in the worker thread; return whether it succeeded."""
        try:
            self._claims.check_scanned()
            await self._worker.run(function, label="claim reconciliation")
        except (OSError, PluginError) as error:
            self._set_failure("", f"claims cannot be reconciled: {error}")
            return False
        self._set_failure("", "")
        return True

    def _repair(self) -> None:
        self._watch()
        self._claims.host.repair()

    def _restore_files(self) -> None:
        self._watch()
        self._claims.host.restore_files()

    def _watch(self) -> None:
        self._files.watch(self._claims.host.directories)

    def _set_failure(self, uid: str, failure: str) -> None:
        """Log a failure of a claim, or (empty UID) of everything, once, and its end once."""
        before = self._failures.get(uid, "")
        if failure and failure != before:
            LOG.error("claim reconciliation failed, retrying", extra={"error": failure})
        elif before and not failure:
            LOG.info("claim reconciliation recovered", extra={"error": before})
        failures = {other: text for other, text in self._failures.items() if other != uid}
        self._failures = {**failures, uid: failure} if failure else failures
