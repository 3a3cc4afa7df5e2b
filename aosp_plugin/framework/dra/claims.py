"""The ResourceClaims of one driver: prepares and unprepares them for the kubelet, and repairs what it has prepared.

A failed preparation costs the pod 60 to 90 s until the kubelet tries again (pkg/kubelet/pod_workers.go). Errors that
may pass are therefore retried within the time that the kubelet waits: an API server that does not answer, and a device
that another claim still has.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from aosp_plugin.framework.aio import call_in_loop, wait_any
from aosp_plugin.framework.apiserver.client import retry
from aosp_plugin.framework.apiserver.protocol import ApiError, NotFoundError
from aosp_plugin.framework.dra.allocations import device_ids, is_needed, record_of
from aosp_plugin.framework.dra.claim_host import ClaimHost, Conflict
from aosp_plugin.framework.dra.claim_specs import BOOT_ID_FILE, ClaimSpecs, uid_problem
from aosp_plugin.framework.dra.interfaces import NULL_DRA_OBSERVER, DeviceHealth
from aosp_plugin.framework.errors import CdiError, ClaimError, ClaimRecordError, PluginError
from aosp_plugin.framework.observer import milliseconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.dra.allocations import Claim, ClaimRecord
    from aosp_plugin.framework.dra.interfaces import ClaimReference, DraObserver, PreparedDevice, Repaired
    from aosp_plugin.framework.inventory import Inventory
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
    """How long the kubelet has to unprepare a claim that is gone and has such a device, before that happens without the
    kubelet: its containers may still be ending."""
    verify: float = 2.0
    """How long to wait for the API server if the claim is prepared already."""


DEFAULT_TIMINGS = ClaimTimings()


class _Call:
    """A call of the kubelet for one claim."""

    def __init__(self, reference: ClaimReference, end: float) -> None:
        """``end`` is the time (``time.monotonic``) when the kubelet needs the answer."""
        self.reference = reference
        self.end = end
        self.given_up = False

    @property
    def remaining(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()

    def check(self) -> None:
        """Raise ClaimError if the kubelet does not wait for the answer any more. For any thread."""
        if self.given_up or self.remaining <= 0:
            raise ClaimError("the claim was not prepared in time")


class Claims:
    """The claims of one driver; a ``ClaimHandler``. Belongs to the running event loop."""

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
        observer: DraObserver = NULL_DRA_OBSERVER,
        timings: ClaimTimings = DEFAULT_TIMINGS,
        boot_id_file: str = BOOT_ID_FILE,
    ) -> None:
        """``worker`` is the one that scans ``backend``, with its result in ``inventory``. The host is not accessed.

        ``get_claim`` returns the claim with a namespace and name, see ``allocations.get_claim``. Directories are paths
        of this process.
        """
        self._driver = driver
        self._node_name = node_name
        self._get_claim = get_claim
        self._worker = worker
        self._inventory = inventory
        self._observer = observer
        self._timings = timings
        loop = asyncio.get_running_loop()
        specs = ClaimSpecs(
            driver,
            state_directory=state_directory,
            cdi_directory=cdi_directory,
            changed=partial(call_in_loop, loop, self._records_changed),
            boot_id_file=boot_id_file,
        )
        self._specs = specs
        self._host = ClaimHost(backend, specs, lambda kind, ok: call_in_loop(loop, self._repaired, kind, ok))
        self.directory = cdi_directory
        """The directory of the specs, as a path of this process."""
        self.withheld = ""
        """Why no further claim gets a device; empty if claims do."""
        self.superseded = asyncio.Event()
        """Set at the next change of ``prepared``, and then replaced."""
        self._preparing: dict[str, set[asyncio.Task[Sequence[PreparedDevice] | str]]] = {}
        self._ids: tuple[int, Mapping[tuple[str, str], str]] = (0, {})
        self._gone: dict[str, tuple[ClaimRecord, float]] = {}
        self._failures: Mapping[str, Exception] = {}
        """Why a claim cannot be repaired or released, by UID; an empty UID is for what concerns no single claim."""

    @property
    def prepared(self) -> Mapping[str, ClaimRecord]:
        """The prepared claims by UID. May be read in any thread."""
        return self._specs.records

    @property
    def problem(self) -> str:
        """Why no claim can be prepared or repaired; empty if they can. May be read in any thread."""
        return _summary([error for uid, error in self._failures.items() if _concerns_all(uid, error)])

    @property
    def notice(self) -> str:
        """Which single claims cannot be repaired or released; others can. May be read in any thread."""
        return _summary([error for uid, error in self._failures.items() if not _concerns_all(uid, error)])

    @property
    def gone(self) -> set[str]:
        """The UIDs of the prepared claims that the API server did not have when it was asked last."""
        return set(self._gone)

    def health(self) -> Sequence[DeviceHealth]:
        """Return the health of each device of a prepared claim, according to the last scan."""
        devices = self._inventory.snapshot.devices
        found = []
        for record in self.prepared.values():
            for allocated in (device for request in record.requests for device in request.devices):
                device = devices.get(allocated.id)
                why = "the device does not exist any more" if device is None else device.why
                healthy = device is not None and device.healthy
                found.append(DeviceHealth(allocated.pool, allocated.name, healthy, "" if healthy else why))
        return found

    async def repair(self, timeout: float | None = None, *, before: Callable[[], None] = lambda: None) -> bool:
        """Make devices and specs match the records; return whether that succeeded. See ``ClaimHost.repair``.

        Failures are logged, and in ``problem`` and ``notice``. ``timeout`` is in seconds; ``before`` is called in the
        worker thread first.
        """

        def repair() -> Mapping[str, Exception]:
            before()
            return self._host.repair()

        failed: Mapping[str, Exception]
        try:
            self._check_scanned()
            failed = await self._worker.run(repair, timeout, label="claim reconciliation")
        except (OSError, PluginError) as error:
            failed = {"": error}
        else:
            for uid in [uid for uid in self._failures if uid not in {*failed, *self._gone}]:
                self._set_failure(uid, None)
        for uid, failure in failed.items():
            self._set_failure(uid, failure)
        return not failed

    async def prepare(
        self, claims: Sequence[ClaimReference], seconds: float
    ) -> Mapping[str, Sequence[PreparedDevice] | str]:
        """Prepare claims within ``seconds``; return the devices or the error of each, by UID."""
        end = time.monotonic() + seconds
        tasks = {claim.uid: asyncio.create_task(self._prepare(_Call(claim, end))) for claim in claims}
        for uid, task in tasks.items():
            self._preparing.setdefault(uid, set()).add(task)
        try:
            if tasks:
                await asyncio.wait(tasks.values())
        finally:
            for uid, task in tasks.items():
                task.cancel()
                self._preparing[uid].discard(task)
                if not self._preparing[uid]:
                    del self._preparing[uid]
            if tasks:
                await asyncio.wait(tasks.values())
        ended = "the claim was unprepared before its preparation had ended"
        return {uid: ended if task.cancelled() else task.result() for uid, task in tasks.items()}

    async def unprepare(self, claims: Sequence[ClaimReference], seconds: float) -> Mapping[str, str]:
        """Unprepare claims within ``seconds``; return the error of each by UID, empty for success.

        A preparation of the same claim that has not ended is cancelled.
        """
        end = time.monotonic() + seconds
        references = {claim.uid: claim for claim in claims}
        errors = await asyncio.gather(*[self._unprepare(claim, end) for claim in references.values()])
        return dict(zip(references, errors, strict=True))

    async def release_if_gone(self, record: ClaimRecord, after: float, timeout: float) -> bool | None:
        """Ask the API server for a prepared claim, and unprepare it if it was gone ``after`` seconds ago, too.

        A claim that is not allocated any more, or has got other devices, does not need those of its record. Return
        whether it needs them; None if the API server cannot tell within ``timeout`` seconds. An answer 404 that is not
        the API's, for example of a proxy, counts as none.
        """
        needed: bool | None = None
        try:
            async with asyncio.timeout(timeout):  # wait_for may lose a cancellation in Python 3.11
                needed = is_needed(record, await self._get_claim(record.namespace, record.name), self._driver)
        except NotFoundError as error:
            needed = False if error.reason == "NotFound" else None
        except (ApiError, TimeoutError):
            pass
        if needed is not False:
            self._gone.pop(record.uid, None)
            return needed
        now = time.monotonic()
        known, since = self._gone.get(record.uid, (None, now))
        if known != record:
            self._gone[record.uid] = (record, now)
        elif now - since >= after:
            await self._release(record)
        return False

    async def _release(self, record: ClaimRecord) -> None:
        """Unprepare a claim without the kubelet, unless its record has changed since."""
        started = time.monotonic()
        try:
            function = partial(self._host.unprepare, record.uid, record)
            if not await self._worker.run(function, label="claim release"):
                return
        except (OSError, PluginError) as error:
            self._observer.unprepared("failed", time.monotonic() - started)
            self._repaired("claim", ok=False)
            text = f"claim {record.label} is gone, and cannot be unprepared: {error}"
            self._set_failure(record.uid, ClaimError(text))
            return
        self._observer.unprepared("ok", time.monotonic() - started)
        self._repaired("claim", ok=True)
        fields = {"claim": record.full_name, "uid": record.uid, "device": ",".join(record.ids)}
        LOG.warning("claim does not exist any more, unprepared", extra=fields)

    async def _prepare(self, call: _Call) -> Sequence[PreparedDevice] | str:
        """Prepare a claim; return its devices or the error."""
        try:
            return await self._outcome(call.reference, self._prepare_claim(call), self._observer.prepared)
        finally:
            call.given_up = True

    async def _outcome(
        self,
        reference: ClaimReference,
        work: Awaitable[T],
        count: Callable[[Literal["ok", "failed"], float], None],
    ) -> T | str:
        """Return the result of the work for a claim, or its error."""
        started, result = time.monotonic(), "failed"
        try:
            answer = await work
            result = "ok"
        except (OSError, PluginError) as error:
            return str(error)
        except Exception as error:
            fields = {"claim": f"{reference.namespace}/{reference.name}", "uid": reference.uid}
            LOG.error("claim failed unexpectedly", extra=fields, exc_info=True)  # noqa: G201 - level
            return f"internal error: {type(error).__name__}: {error}"
        finally:
            count("ok" if result == "ok" else "failed", time.monotonic() - started)
        return answer

    async def _prepare_claim(self, call: _Call) -> Sequence[PreparedDevice]:
        started = time.monotonic()
        wanted = await self._wanted(call)
        devices = await self._prepare_when_free(wanted, call)
        duration = milliseconds(time.monotonic() - started)
        fields = {"claim": wanted.full_name, "uid": wanted.uid, "device": ",".join(wanted.ids), "duration_ms": duration}
        LOG.info("claim prepared", extra=fields)
        return devices

    async def _wanted(self, call: _Call) -> ClaimRecord:
        """Return what is to be prepared, according to the API server. Raises ApiError, OSError and PluginError.

        If the claim is prepared already, its record is the answer, unless the API server has another one in time: a
        claim that several pods use one after another may be allocated again, with the same UID and other devices.
        """
        namespace, name, uid = call.reference
        if problem := uid_problem(uid):
            raise ClaimError(problem)
        existing = self.prepared.get(uid)
        if existing is None and self.withheld:
            raise ClaimError(self.withheld)
        ids = await self._device_ids(call.remaining)
        seconds = call.remaining if existing is None else min(self._timings.verify, call.remaining)
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
        return record_of(call.reference, claim, self._driver, ids)

    async def _prepare_when_free(self, wanted: ClaimRecord, call: _Call) -> tuple[PreparedDevice, ...]:
        """Prepare a claim as soon as no other one has its devices. Raises OSError and PluginError."""
        timings, since, asked = self._timings, math.inf, -math.inf
        try:
            while True:
                superseded = self.superseded
                call.check()
                function = partial(self._host.prepare, wanted, call.check)
                result = await self._worker.run(function, call.remaining, label="claim preparation")
                if not isinstance(result, Conflict):
                    return result
                now = time.monotonic()
                if since == math.inf:
                    since = now
                    fields = {"claim": wanted.full_name, "uid": wanted.uid, "other": result.other.label}
                    LOG.info("claim waits for a device that another claim has", extra=fields)
                seconds = min(since + timings.conflict - now, call.remaining - timings.poll)
                if seconds <= 0:
                    raise ClaimError(_refusal(wanted, result.other, now - since))
                if now - asked >= timings.ask:
                    asked = now
                    await self.release_if_gone(result.other, timings.gone, seconds)
                await wait_any(superseded, timeout=min(timings.poll, seconds))
        finally:
            if since != math.inf:
                self._observer.waited_for_device(time.monotonic() - since)

    async def _unprepare(self, reference: ClaimReference, end: float) -> str:
        """Unprepare a claim; return the error, empty for success."""
        return await self._outcome(reference, self._unprepare_claim(reference, end), self._observer.unprepared)

    async def _unprepare_claim(self, reference: ClaimReference, end: float) -> str:
        started = time.monotonic()
        preparing = self._preparing.get(reference.uid, set()).copy()
        for task in preparing:
            task.cancel()
        if preparing:
            await asyncio.wait(preparing)
        function = partial(self._host.unprepare, reference.uid)
        if await self._worker.run(function, end - time.monotonic(), label="claim unpreparation"):
            duration = milliseconds(time.monotonic() - started)
            fields = {"claim": f"{reference.namespace}/{reference.name}", "uid": reference.uid, "duration_ms": duration}
            LOG.info("claim unprepared", extra=fields)
        return ""

    async def _device_ids(self, seconds: float) -> Mapping[tuple[str, str], str]:
        """Return the ID of each device of this node by pool and name; wait for the first scan."""
        if not self._inventory.snapshot.revision:
            await wait_any(self._inventory.superseded(0), timeout=max(seconds, 0.0))
        self._check_scanned()
        snapshot = self._inventory.snapshot
        if self._ids[0] != snapshot.revision:
            self._ids = (snapshot.revision, device_ids(self._node_name, [*snapshot.devices]))
        return self._ids[1]

    def _check_scanned(self) -> None:
        """Raise ClaimError before the first scan, after which the backend prepares devices."""
        if not self._inventory.snapshot.revision:
            raise ClaimError("the devices of this node have not been scanned yet")

    def _records_changed(self) -> None:
        self.superseded.set()
        self.superseded = asyncio.Event()
        self._gone = {uid: gone for uid, gone in self._gone.items() if self.prepared.get(uid) == gone[0]}
        for uid in [uid for uid in self._failures if uid and uid not in self.prepared]:
            self._set_failure(uid, None)
        self._observer.claims_changed(len(self.prepared))

    def _repaired(self, kind: Repaired, ok: bool) -> None:  # noqa: FBT001 - a callback
        self._observer.reconciled(kind, "ok" if ok else "failed")

    def _set_failure(self, uid: str, error: Exception | None) -> None:
        """Log a failure of a claim, or (empty UID) of everything, once, and its end once."""
        before = self._failures.get(uid)
        if error is not None and str(error) != str(before):
            LOG.error("claim reconciliation failed, retrying", extra={"uid": uid, "error": str(error)})
        elif before is not None and error is None:
            LOG.info("claim reconciliation recovered", extra={"uid": uid, "error": str(before)})
        failures = {other: failure for other, failure in self._failures.items() if other != uid}
        self._failures = failures if error is None else {**failures, uid: error}


def _concerns_all(uid: str, error: Exception) -> bool:
    return not uid or isinstance(error, CdiError | ClaimRecordError)


def _summary(errors: Sequence[Exception]) -> str:
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"claims cannot be repaired: {errors[0]}{more}" if errors else ""


def _refusal(wanted: ClaimRecord, other: ClaimRecord, seconds: float) -> str:
    ids = frozenset(other.ids)
    names = [device.name for request in wanted.requests for device in request.devices if device.id in ids]
    return f"device {', '.join(names)} is still prepared for claim {other.label}, after a wait of {seconds:.0f} s"
