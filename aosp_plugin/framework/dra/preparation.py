"""The preparation of one ResourceClaim: gets it from the API server, and waits for its devices.

A failed preparation costs the pod 60 to 90 s until the kubelet tries again (pkg/kubelet/pod_workers.go). Errors that
may pass are therefore retried within the time that the kubelet waits: an API server that does not answer, and a device
that another claim still has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.apiserver.client import retry
from aosp_plugin.framework.apiserver.errors import ApiError, NotFoundError
from aosp_plugin.framework.dra.allocations import record_of
from aosp_plugin.framework.dra.claim_host import Conflict
from aosp_plugin.framework.dra.claim_source import still_needed
from aosp_plugin.framework.dra.claim_spec import uid_problem
from aosp_plugin.framework.errors import ClaimError, PluginError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from aosp_plugin.framework.dra.claim_host import ClaimHost
    from aosp_plugin.framework.dra.claim_source import ClaimSource
    from aosp_plugin.framework.dra.interfaces import ClaimReference, PreparedDevice
    from aosp_plugin.framework.dra.observer import DraObserver
    from aosp_plugin.framework.dra.records import ClaimRecord
    from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class ClaimTimings(NamedTuple):
    """Times in seconds."""

    conflict: float = 30.0
    """How long a preparation waits for a device that another claim has: the kubelet waits for 45 s."""
    poll: float = 1.0
    """Between two attempts in that wait: another process of the driver may release the device."""
    ask: float = 3.0
    """Between two questions to the API server in that wait, whether the other claim still needs the device."""
    gone: float = 10.0
    """How long the kubelet has to unprepare a claim that is gone, before that happens without the kubelet: its
    containers may still be ending."""
    verify: float = 2.0
    """How long to wait for the API server if the claim is prepared already."""


DEFAULT_TIMINGS = ClaimTimings()


class Parts(NamedTuple):
    """What preparations work with. All functions are called in the event loop."""

    host: ClaimHost
    worker: Worker
    source: ClaimSource
    driver: str
    devices: Callable[[float], Awaitable[Mapping[tuple[str, str], str]]]
    """Returns the ID of each device by pool and name; waits for the first scan, for at most so many seconds."""
    withheld: Callable[[], str]
    """Returns why no further claim gets a device; empty if claims do."""
    superseded: Callable[[], asyncio.Event]
    """Returns an event that is set when the prepared claims change."""
    release: Callable[[ClaimRecord], Awaitable[None]]
    """Unprepares a claim that is gone."""
    observer: DraObserver
    timings: ClaimTimings


class Preparation:
    """The preparation of one claim for one call of the kubelet. Belongs to the event loop."""

    def __init__(self, parts: Parts, reference: ClaimReference, end: float) -> None:
        """``end`` is the time (``time.monotonic``) when the kubelet needs the answer."""
        self._parts = parts
        self._reference = reference
        self._end = end
        self._given_up = False

    async def run(self) -> Sequence[PreparedDevice]:
        """Return the devices of the claim, prepared. Raises OSError and PluginError."""
        try:
            if problem := uid_problem(self._reference.uid):
                raise ClaimError(problem)
            wanted = await self._wanted()
            result = await self._prepare(wanted)
            return await self._wait(wanted, result) if isinstance(result, Conflict) else result
        finally:
            self._given_up = True

    @property
    def _remaining(self) -> float:
        return self._end - time.monotonic()

    def _check(self) -> None:
        """Raise ClaimError if the kubelet does not wait for the answer any more. For any thread."""
        if self._given_up or self._remaining <= 0:
            raise ClaimError("the claim was not prepared in time")

    async def _call(self, function: Callable[[], T], label: str) -> T:
        self._check()
        return await self._parts.worker.run(function, self._remaining, label=label)

    async def _prepare(self, wanted: ClaimRecord) -> tuple[PreparedDevice, ...] | Conflict:
        return await self._call(partial(self._parts.host.prepare, wanted, self._check), "claim preparation")

    async def _wanted(self) -> ClaimRecord:
        """Return what is to be prepared, according to the API server.

        If the claim is prepared already, its record is the answer, unless the API server has another one in time: a
        claim that several pods use one after another may be allocated again, with the same UID and other devices.
        """
        namespace, name, uid = self._reference
        existing = await self._call(partial(self._parts.host.completed, uid), "claim lookup")
        if existing is None and (reason := self._parts.withheld()):
            raise ClaimError(reason)
        ids = await self._parts.devices(self._remaining)
        seconds = self._remaining if existing is None else min(self._parts.timings.verify, self._remaining)
        try:
            claim = await retry(partial(self._parts.source.get_claim, namespace, name), seconds)
        except ApiError as error:
            gone = isinstance(error, NotFoundError) and error.reason == "NotFound"
            if existing is None or gone:
                raise
            fields = {"claim": existing.full_name, "uid": uid, "error": str(error)}
            LOG.warning("claim not available, prepared according to its record", extra=fields)
            return existing.with_state("started")
        except ValueError as error:
            raise ClaimError(str(error)) from error
        return record_of(self._reference, claim, self._parts.driver, ids)

    async def _wait(self, wanted: ClaimRecord, conflict: Conflict) -> tuple[PreparedDevice, ...]:
        """Prepare the claim when the other ones that have its devices are unprepared."""
        timings, started = self._parts.timings, time.monotonic()
        fields = {"claim": wanted.full_name, "uid": wanted.uid, "other": conflict.other.label}
        LOG.info("claim waits for a device that another claim has", extra=fields)
        watch = _GoneWatch(self._parts, started)
        try:
            while True:
                superseded = self._parts.superseded()
                seconds = min(started + timings.conflict - time.monotonic(), self._remaining - timings.poll)
                if seconds <= 0:
                    raise ClaimError(_refusal(wanted, conflict.other, time.monotonic() - started))
                await watch.ask(conflict.other, seconds)
                await wait_any(superseded, timeout=min(timings.poll, seconds))
                result = await self._prepare(wanted)
                if not isinstance(result, Conflict):
                    return result
                conflict = result
        finally:
            self._parts.observer.waited_for_device(time.monotonic() - started)


class _GoneWatch:
    """Unprepares the claim for whose device a preparation waits, if it is gone and the kubelet does not do it."""

    def __init__(self, parts: Parts, started: float) -> None:
        self._parts = parts
        self._next = started
        self._gone: tuple[str, float] | None = None
        self._logged = ""

    async def ask(self, other: ClaimRecord, seconds: float) -> None:
        """Ask the API server for the claim, if it is time to; wait for at most ``seconds``."""
        now, timings = time.monotonic(), self._parts.timings
        if now < self._next:
            return
        self._next = now + timings.ask
        try:
            async with asyncio.timeout(seconds):  # wait_for may lose a cancellation in Python 3.11
                needed = await still_needed(self._parts.source, other, self._parts.driver)
        except TimeoutError:
            needed = None
        if needed is not False:
            self._gone = None
        elif self._gone is None or self._gone[0] != other.uid:
            self._gone = (other.uid, now)
        elif now - self._gone[1] >= timings.gone:
            try:
                await self._parts.release(other)
            except (OSError, PluginError) as error:
                self._failed(other, str(error))

    def _failed(self, other: ClaimRecord, error: str) -> None:
        if error != self._logged:
            fields = {"claim": other.full_name, "uid": other.uid, "error": error}
            LOG.error("claim does not exist any more, and cannot be unprepared", extra=fields)
        self._logged = error


def _refusal(wanted: ClaimRecord, other: ClaimRecord, seconds: float) -> str:
    ids = frozenset(other.ids)
    names = [device.name for request in wanted.requests for device in request.devices if device.id in ids]
    return f"device {', '.join(names)} is still prepared for claim {other.label}, after a wait of {seconds:.0f} s"
