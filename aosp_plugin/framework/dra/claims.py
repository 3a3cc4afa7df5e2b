"""The ResourceClaims of one driver: prepares and unprepares them for the kubelet, and repairs what it has prepared.

Repairs follow file events and starts of the kubelet, and are periodic. Each round makes devices and specs match the
records. A lost spec is written again as soon as its file event arrives: within one boot, no kubelet asks for it again.
A claim that is gone is unprepared without the kubelet, which may have lost its own record of it.

A failed preparation costs the pod 60 to 90 s until the kubelet tries again (pkg/kubelet/pod_workers.go). Errors that
may pass are therefore retried within the time that the kubelet waits: an API server that does not answer, and a device
that another claim still has.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

from aosp_plugin.framework.aio import background_task, call_in_loop, complete_unless, debounce
from aosp_plugin.framework.apiserver.client import retry
from aosp_plugin.framework.apiserver.protocol import ApiError, NotFoundError
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.dra.claim_host import BOOT_ID_FILE, ClaimHost, ClaimSpecs, uid_problem
from aosp_plugin.framework.dra.claim_records import (
    Claim,
    ClaimRecord,
    ClaimReference,
    PreparedDevice,
    device_ids,
    is_needed,
    record_of,
)
from aosp_plugin.framework.errors import CdiError, ClaimError, ClaimRecordError, PluginError
from aosp_plugin.framework.events.file_events import Subscription
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.observer import NULL_OBSERVER, LastingProblem, Observer, milliseconds
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Timings
from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)


class DeviceHealth(NamedTuple):
    """Health of a device of a prepared claim."""

    pool: str
    device: str
    problem: str
    """Why it is unhealthy; empty if it is healthy."""


class _Call:
    """A call of the kubelet to prepare a claim."""

    def __init__(self, uid: str, seconds: float, clock: Clock) -> None:
        self.uid = uid
        self.refusal = ""
        """Why it must not have an effect any more."""
        self._clock = clock
        self.began = clock()
        self._end = self.began + seconds

    @property
    def remaining(self) -> float:
        """Seconds until the kubelet needs the answer."""
        return self._end - self._clock()

    def check(self) -> None:
        """Raise ClaimError if the call must not have an effect any more. For any thread."""
        if self.refusal or self.remaining <= 0:
            raise ClaimError(self.refusal or "the claim was not prepared in time")


class Claims:
    """The claims of one driver. Belongs to the running event loop; calls for claims overlap."""

    def __init__(
        self,
        backend: Backend,
        driver: str,
        node_name: str,
        *,
        get_claim: Callable[[str, str], Awaitable[Claim]],
        worker: Worker,
        inventory: Inventory,
        state_directory: str,
        cdi_directory: str,
        observer: Observer = NULL_OBSERVER,
        timings: Timings = DEFAULT,
        clock: Clock = CLOCK,
        boot_id_file: str = BOOT_ID_FILE,
    ) -> None:
        """``worker`` is the one that scans ``backend``, with its result in ``inventory``. The host is not accessed.

        ``get_claim`` returns the claim with a namespace and name (``claim_records.get_claim``). Directories are paths
        of this process.
        """
        self._driver = driver
        self._node_name = node_name
        self._get_claim = get_claim
        self._worker = worker
        self._inventory = inventory
        self._observer = observer
        self._timings = timings
        self._clock = clock
        loop = asyncio.get_running_loop()
        self._specs = ClaimSpecs(
            driver,
            state_directory=state_directory,
            cdi_directory=cdi_directory,
            changed=partial(call_in_loop, loop, self._records_changed),
            boot_id_file=boot_id_file,
        )
        self._host = ClaimHost(backend, self._specs)
        self.withheld = ""
        """Why no further claim gets a device; empty if claims do."""
        self._superseded = asyncio.Event()
        self._calls: set[_Call] = set()
        self._ids: tuple[int, Mapping[tuple[str, str], str]] = (0, {})
        self._gone: dict[str, tuple[ClaimRecord, float]] = {}
        self._ended: dict[str, ClaimRecord] = {}
        """Claims that have been gone for long enough. Repairs release them, until they have no record."""
        self._requested = asyncio.Event()
        self._requested.set()  # the process may have been away for long
        self._repair_due = self._ask_due = self._ask_all_due = self._clock()
        self._problem, self._notice = (
            LastingProblem(
                LOG, "claim reconciliation failed, retrying", "claim reconciliation recovered", logging.ERROR
            )
            for _ in range(2)
        )

    @property
    def prepared(self) -> Mapping[str, ClaimRecord]:
        """The prepared claims by UID. May be read in any thread."""
        return self._specs.records

    @property
    def problem(self) -> str:
        """Why no claim can be prepared or repaired; empty if they can. May be read in any thread."""
        return self._problem.text

    @property
    def notice(self) -> str:
        """Which single claims cannot be repaired or released, and which one is slow. May be read in any thread."""
        now = self._clock()
        began, uid = min(((call.began, call.uid) for call in [*self._calls]), default=(now, ""))
        is_slow = now - began > self._timings.claim_slow
        slow = f"claim {uid} is not prepared after {now - began:.0f} s" if is_slow else ""
        return "; ".join(filter(None, [self._notice.text, slow]))

    def health(self) -> tuple[Sequence[DeviceHealth], Sequence[asyncio.Event]]:
        """Return the health of each device of a prepared claim, according to the last scan.

        One of the events is set as soon as it may be another one.
        """
        snapshot = self._inventory.snapshot
        found = []
        for allocated in (each for record in self.prepared.values() for each in record.devices):
            device = snapshot.devices.get(allocated.id)
            problem = "the device does not exist any more" if device is None else device.why if device.reason else ""
            found.append(DeviceHealth(allocated.pool, allocated.name, problem))
        return found, (self._superseded, self._inventory.superseded(snapshot.revision))

    def check(self) -> None:
        """Request a round about all claims, for example after a restart of the kubelet."""
        self._ask_due = self._ask_all_due = 0.0
        self._requested.set()

    async def run(self, files: Subscription, stop: asyncio.Event) -> None:
        """Repair until ``stop`` is set. Failures are logged, retried, and in ``problem`` or ``notice``.

        ``files`` is used by this object alone.
        """
        while not stop.is_set():
            pause = min(self._repair_due - self._clock(), files.interval)
            # A repair that fails changes files, too.
            changed = () if self.problem or self._notice.text else (files.changed,)
            await self._clock.wait(*changed, self._requested, stop, timeout=max(0.0, pause))
            if stop.is_set():
                return
            if not self._requested.is_set():
                await debounce(files.changed, self._timings.quiet, self._timings.retry)
            await self.round(files, stop)

    async def round(self, files: Subscription, stop: asyncio.Event) -> None:
        """Repair what is on the host; ask the API server for the claims that are due, all of them after ``check``."""
        self._requested.clear()
        files.changed.clear()
        await self.repair(before=lambda: files.watch([self._specs.directory]))
        if self._clock() >= self._ask_due:
            await self._ask_for_claims(stop)

    async def repair(self, timeout: float | None = None, *, before: Callable[[], None] = lambda: None) -> None:
        """Make devices and specs match the records. See ``ClaimHost.repair``.

        Failures are logged, retried, and in ``problem`` and ``notice``. ``timeout`` is in seconds; ``before`` is called
        in the worker thread first.
        """
        function = partial(self._host.repair, dict(self._ended), before)
        try:
            self._check_scanned()
            failed, repaired = await self._worker.run(function, timeout, label="claim reconciliation")
            for kind, result in repaired:
                self._observer.reconciled(kind, result)
        except (OSError, PluginError) as error:
            failed = {"": error}
        general = {uid: e for uid, e in failed.items() if not uid or isinstance(e, CdiError | ClaimRecordError)}
        _set(self._problem, general)
        _set(self._notice, {uid: error for uid, error in failed.items() if uid not in general})
        pause = self._timings.recheck if failed else self._timings.claim_round
        self._repair_due = self._clock() + pause

    async def prepare(self, reference: ClaimReference, seconds: float) -> Sequence[PreparedDevice]:
        """Prepare a claim within ``seconds``, and return its devices. Raises OSError and PluginError.

        Whether the caller is cancelled or not, no claim is left half prepared.
        """
        call = _Call(reference.uid, seconds, self._clock)
        self._calls.add(call)
        try:
            with self._counted(self._observer.prepared) as elapsed:
                wanted = await self._wanted(reference, call)
                self._keep(wanted.uid)  # it may have been gone meanwhile
                devices = await self._prepare_when_free(wanted, call)
        finally:
            call.refusal = call.refusal or "the kubelet does not wait any more"
            self._calls.discard(call)
        fields = {"claim": wanted.full_name, "uid": wanted.uid, "device": ",".join(wanted.ids)}
        LOG.info("claim prepared", extra={**fields, "duration_ms": elapsed()})
        return devices

    async def unprepare(self, reference: ClaimReference, seconds: float) -> None:
        """Unprepare a claim within ``seconds``, also one that is unknown. Raises OSError and PluginError.

        A preparation of the same claim that has not ended has no effect any more.
        """
        for call in self._calls:
            if call.uid == reference.uid:
                call.refusal = "the claim was unprepared before its preparation had ended"
        with self._counted(self._observer.unprepared) as elapsed:
            function = partial(self._host.unprepare, reference.uid)
            known = await self._worker.run(function, seconds, label="claim unpreparation")
        if known:
            fields = {"claim": reference.full_name, "uid": reference.uid, "duration_ms": elapsed()}
            LOG.info("claim unprepared", extra=fields)
        else:  # its spec may have been lost: the next round releases devices of no claim
            self._requested.set()

    async def ask(self, record: ClaimRecord, timeout: float) -> bool | None:
        """Ask the API server whether a prepared claim needs its devices; None without an answer in ``timeout`` seconds.

        A claim that is not allocated any more, or has got other devices, does not need those of its record. A claim
        that the API server refuses to show may need them; so may one with an answer 404 that is not the API's, for
        example of a proxy. The next repair unprepares a claim that does not need them, and did not
        ``Timings.claim_gone`` seconds ago.
        """
        needed: bool | None = None
        try:
            async with asyncio.timeout(timeout):  # wait_for may lose a cancellation in Python 3.11
                needed = is_needed(record, await self._get_claim(record.namespace, record.name), self._driver)
        except ApiError as error:
            if not error.transient:
                needed = not (isinstance(error, NotFoundError) and error.reason == "NotFound")
        except TimeoutError:
            pass
        if needed is not False:
            self._keep(record.uid)
            return needed
        now = self._clock()
        known, since = self._gone.get(record.uid, (None, now))
        if known != record:
            self._gone[record.uid] = (record, now)
        elif now - since >= self._timings.claim_gone:
            self._ended[record.uid] = record
        return False

    async def _ask_for_claims(self, stop: asyncio.Event) -> None:
        """Ask for all claims, or between these times for those that were gone; one after another."""
        now = self._clock()
        everything, gone = now >= self._ask_all_due, {*self._gone}
        self._ask_due = now + self._timings.claim_round
        if everything:
            self._ask_all_due = now + self._timings.claim_ask
        for record in [*self.prepared.values()]:
            if everything or record.uid in gone:
                is_needed = await self.ask(record, self._timings.hang)
                if is_needed is False:
                    self._repair_due = now  # which may release it
                if is_needed is None or stop.is_set():  # the API server does not answer: the next round asks again
                    self._ask_all_due = now if everything else self._ask_all_due
                    return

    async def _wanted(self, reference: ClaimReference, call: _Call) -> ClaimRecord:
        """Return what is to be prepared, according to the API server. Raises ApiError, OSError and PluginError.

        If the claim is prepared already, its record is the answer, unless the API server has another one in time: a
        claim that several pods use one after another may be allocated again, with the same UID and other devices.
        """
        namespace, name, uid = reference
        if problem := uid_problem(uid):
            raise ClaimError(problem)
        existing = self.prepared.get(uid)
        if existing is None and self.withheld:
            raise ClaimError(self.withheld)
        ids = await self._device_ids(call.remaining)
        seconds = call.remaining if existing is None else min(self._timings.claim_verify, call.remaining)
        try:
            claim = await retry(partial(self._get_claim, namespace, name), seconds)
        except ApiError as error:
            gone = isinstance(error, NotFoundError) and error.reason == "NotFound"
            if existing is None or gone:
                raise
            fields = {"claim": existing.full_name, "uid": uid, "error": str(error)}
            LOG.warning("claim not available, prepared according to its record", extra=fields)
            return existing
        except ValueError as error:
            raise ClaimError(str(error)) from error
        return record_of(reference, claim, self._driver, ids)

    async def _prepare_when_free(self, wanted: ClaimRecord, call: _Call) -> Sequence[PreparedDevice]:
        """Prepare a claim as soon as no other one has its devices. Raises OSError and PluginError."""
        since = math.inf
        try:
            while True:
                superseded = self._superseded
                call.check()
                function = partial(self._host.prepare, wanted, call.check)
                result = await self._worker.run(function, call.remaining, label="claim preparation")
                if not isinstance(result, ClaimRecord):
                    return result
                now = self._clock()
                if since == math.inf:
                    since = now
                    fields = {"claim": wanted.full_name, "uid": wanted.uid, "other": result.label}
                    LOG.info("claim waits for a device that another claim has", extra=fields)
                seconds = min(since + self._timings.claim_conflict - now, call.remaining - self._timings.claim_poll)
                if seconds <= 0:
                    raise ClaimError(_refusal(wanted, result, now - since))
                async with background_task(self.ask(result, seconds)) as asking:
                    while self.prepared.get(result.uid) == result:  # other claims come and go
                        if await complete_unless(self._superseded, asyncio.wait({asking})):
                            asking.result()
                            break
                if result.uid in self._ended:
                    await self.repair(seconds)
                    self._requested.set()  # the round retries what failed
                await self._clock.wait(superseded, timeout=min(self._timings.claim_poll, seconds))
        finally:
            if since != math.inf:
                self._observer.waited_for_device(self._clock() - since)

    async def _device_ids(self, seconds: float) -> Mapping[tuple[str, str], str]:
        """Return the ID of each device of this node by pool and name; wait for the first scan."""
        if not self._inventory.snapshot.revision:
            await self._clock.wait(self._inventory.superseded(0), timeout=max(seconds, 0.0))
        self._check_scanned()
        snapshot = self._inventory.snapshot
        if self._ids[0] != snapshot.revision:
            self._ids = (snapshot.revision, device_ids(self._node_name, [*snapshot.devices]))
        return self._ids[1]

    def _check_scanned(self) -> None:
        """Raise ClaimError before the first scan, after which the backend prepares devices."""
        if not self._inventory.snapshot.revision:
            raise ClaimError("the devices of this node have not been scanned yet")

    def _keep(self, uid: str) -> None:
        """Forget that a claim was gone, so that no repair releases it."""
        self._gone.pop(uid, None)
        self._ended.pop(uid, None)

    def _records_changed(self) -> None:
        self._superseded.set()
        self._superseded = asyncio.Event()
        prepared = self.prepared
        self._gone = {uid: gone for uid, gone in self._gone.items() if prepared.get(uid) == gone[0]}
        self._ended = {uid: record for uid, record in self._ended.items() if prepared.get(uid) == record}
        self._observer.claims_changed(len(prepared))

    @contextlib.contextmanager
    def _counted(self, count: Callable[[Literal["ok", "failed"], float], None]) -> Iterator[Callable[[], float]]:
        """Count what happens in the context, with its duration; yield what returns the milliseconds so far."""
        started = self._clock()
        try:
            yield lambda: milliseconds(self._clock() - started)
        except BaseException:
            count("failed", self._clock() - started)
            raise
        count("ok", self._clock() - started)


def _set(problem: LastingProblem, errors: Mapping[str, Exception]) -> None:
    """Set what cannot be repaired or released, by UID; an empty UID is for what concerns no single claim."""
    uid, error = next(iter(errors.items()), ("", None))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    text = f"{f'claim {uid}' if uid else 'claims'} cannot be repaired: {error}{more}" if errors else ""
    problem.set(text, uid=uid, error=str(error) if errors else problem.text)


def _refusal(wanted: ClaimRecord, other: ClaimRecord, seconds: float) -> str:
    ids = frozenset(other.ids)
    names = [device.name for device in wanted.devices if device.id in ids]
    return f"device {', '.join(names)} is still prepared for claim {other.label}, after a wait of {seconds:.0f} s"
