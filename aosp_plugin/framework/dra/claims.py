"""The ResourceClaims of one driver: prepares and unprepares them for the kubelet, and repairs prepared claims.

Repairs follow file events and starts of the kubelet, and are periodic. Each round makes devices and specs match the
records. A lost spec is written again as soon as its file event arrives: within one boot, no kubelet asks for it again.
A claim that is gone is unprepared without the kubelet, which may have lost its own record of the claim.

A failed preparation costs the pod 60 to 90 s until the kubelet tries again (pkg/kubelet/pod_workers.go). Errors that
may pass are therefore retried within the time that the kubelet waits: an API server that does not answer, and a device
that another claim still has.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import Counter, Histogram

from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.apiserver.client import retry
from aosp_plugin.framework.apiserver.protocol import ApiError, NotFoundError
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.conditions import (
    CLAIM_SLOW,
    CLAIMS_FAILING,
    CLAIMS_NOT_REPAIRED,
    CLAIMS_UNSERVED,
    Condition,
    Kind,
)
from aosp_plugin.framework.dra import slices
from aosp_plugin.framework.dra.api_claims import ApiClaims, Claim, device_ids, record_of
from aosp_plugin.framework.dra.claim_host import ClaimHost, ClaimSpecs
from aosp_plugin.framework.dra.claim_records import BOOT_ID_FILE, UID, ClaimRecord, ClaimReference, RecordStore
from aosp_plugin.framework.errors import (
    CdiError,
    ClaimError,
    ClaimRecordError,
    ClaimRefusedError,
    FormerClaimError,
    InvalidRequestError,
    PluginError,
)
from aosp_plugin.framework.file_events import Subscription
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service.logs import milliseconds
from aosp_plugin.framework.timing import call_in_loop, debounce
from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)


class DeviceHealth(NamedTuple):
    """Health of a device of a prepared claim."""

    pool: str
    device: str
    problem: str
    """Why it is unhealthy; empty if it is healthy."""


class Claims:
    """The claims of one driver. Belongs to the running event loop; calls for claims overlap."""

    def __init__(
        self,
        backend: Backend[Any],
        driver: str,
        node_name: str,
        *,
        get_claim: Callable[[str, str], Awaitable[Claim]],
        worker: Worker,
        inventory: Inventory,
        state_directory: str,
        cdi_directory: str,
        pods_changed: Callable[[], None] = lambda: None,
        runtime: Runtime,
        boot_id_file: str = BOOT_ID_FILE,
    ) -> None:
        """``worker`` is the one that scans ``backend``, with its result in ``inventory``. The host is not accessed.

        ``get_claim`` returns the claim with a namespace and name (``api_claims.get_claim``). Directories are paths
        of this process. ``pods_changed`` is called when a claim was prepared or unprepared.
        """
        self._driver = driver
        self._node_name = node_name
        self.api = ApiClaims(driver, get_claim, runtime)
        self._conditions = runtime.conditions
        self._worker = worker
        self._inventory = inventory
        self._resource = backend.resource_name
        self._metrics = runtime.metrics
        self._pods_changed = pods_changed
        self._timings = runtime.timings
        self._clock = runtime.clock
        loop = asyncio.get_running_loop()
        changed = partial(call_in_loop, loop, self._records_changed)
        self._store = RecordStore(driver, state_directory, changed=changed, boot_id_file=boot_id_file)
        self._host = ClaimHost(backend, inventory, self._store, ClaimSpecs(driver, cdi_directory))
        self._watched = [state_directory, cdi_directory]
        self.withheld = ""
        """Why no further claim gets a device; empty if claims get devices."""
        self._superseded = asyncio.Event()
        self._slow: dict[str, Condition] = {}
        self._repair_failed = False
        """Whether the last repair has failed, but for claims of a former configuration."""
        self._unserved: set[str] = set()
        """The claims of a former configuration."""
        self._ids: tuple[int, Mapping[tuple[str, str], str]] = (0, {})
        self._requested = asyncio.Event()
        self._requested.set()  # the process may have been away for long
        self._repair_due = self._ask_due = self._ask_all_due = self._clock()

    @property
    def prepared(self) -> Mapping[str, ClaimRecord]:
        """The prepared claims by UID. May be read in any thread."""
        return self._store.records

    @property
    def is_served_elsewhere(self) -> bool:
        """Whether another process has the claims of the driver. May be read in any thread."""
        return self._store.is_served_elsewhere

    async def prepare(self, reference: ClaimReference, seconds: float) -> Sequence[pb.Device]:
        """Prepare a claim within ``seconds``, and return its devices. Raises OSError and PluginError.

        No claim is left half prepared, even if the caller is cancelled.
        """
        end, limit, subject = self._clock() + seconds, self._timings.claim_slow, f"claim {reference.uid}"
        condition = Condition(CLAIM_SLOW, f"{subject} is not prepared after {limit:g} s", subject, since=time.time())
        slow = asyncio.get_running_loop().call_later(limit, self._report_slow, subject, condition)
        try:
            with self._counted(self._metrics.claim_prepares, self._metrics.claim_prepare_duration) as elapsed:
                wanted = await self._wanted(reference, end)
                self.api.keep(wanted.uid)  # the claim may have counted as gone meanwhile
                await self._restore_damaged()
                devices = await self._prepare_when_free(wanted, end)
        finally:
            slow.cancel()
            self._report_slow(subject, None)
        fields = {"claim": wanted.full_name, "uid": wanted.uid, "device": ",".join(wanted.ids)}
        LOG.info("claim prepared", extra={**fields, "duration_ms": elapsed()})
        return devices

    async def _wanted(self, reference: ClaimReference, end: float) -> ClaimRecord:
        """Return the record of a claim that is to be prepared. Raises ApiError, OSError and PluginError.

        It is made from the answer of the API server. If the claim is prepared already and the API server does not
        answer in time, it is the present record. A claim that several pods use one after another may be allocated
        again, with the same UID and other devices.
        """
        namespace, name, uid = reference
        if UID.fullmatch(uid) is None:
            raise ClaimError(f"the UID {uid!r} has other characters than letters, digits and dashes")
        existing = self.prepared.get(uid)
        if existing is None and self.withheld:
            raise ClaimError(self.withheld)
        ids = await self._device_ids(end - self._clock())
        seconds = end - self._clock() if existing is None else self._timings.claim_verify
        try:
            claim = await retry(partial(self.api.get, namespace, name), seconds)
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

    async def _prepare_when_free(self, wanted: ClaimRecord, end: float) -> Sequence[pb.Device]:
        """Prepare a claim as soon as no other claim has its devices. Raises OSError and PluginError."""
        since = math.inf
        try:
            while True:
                superseded = self._superseded
                prepare, remaining = partial(self._host.prepare, wanted), end - self._clock()
                result = await self._worker.run(prepare, remaining, label="claim preparation")
                if not isinstance(result, ClaimRecord):
                    return result
                now = self._clock()
                if since == math.inf:
                    since = now
                    fields = {"claim": wanted.full_name, "uid": wanted.uid, "other": result.label}
                    LOG.info("claim waits for a device that another claim has", extra=fields)
                seconds = min(since + self._timings.claim_conflict - now, end - now - self._timings.claim_poll)
                if seconds <= 0:
                    raise ClaimError(_refusal(wanted, result, now - since))
                pause = min(self._timings.claim_poll, seconds)
                await self.api.ask(result, pause)
                if result.uid in self.api.ended:
                    await self.repair(seconds)
                    self._requested.set()  # the round retries what failed
                await self._clock.wait(superseded, timeout=pause)
        finally:
            if since != math.inf:
                self._metrics.claim_device_wait.labels(self._resource).observe(self._clock() - since)

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
        """Raise ClaimError before the first scan, without which the backend cannot prepare devices."""
        if not self._inventory.snapshot.revision:
            raise ClaimError("the devices of this node have not been scanned yet")

    async def unprepare(self, reference: ClaimReference, seconds: float) -> None:
        """Unprepare a claim, known or not, within ``seconds``. Raises OSError and PluginError."""
        with self._counted(self._metrics.claim_unprepares, self._metrics.claim_unprepare_duration) as elapsed:
            function = partial(self._host.unprepare, reference.uid)
            known = await self._worker.run(function, seconds, label="claim unpreparation")
        if known:
            fields = {"claim": reference.full_name, "uid": reference.uid, "duration_ms": elapsed()}
            LOG.info("claim unprepared", extra=fields)

    @contextlib.contextmanager
    def _counted(self, count: Counter, duration: Histogram) -> Iterator[Callable[[], float]]:
        """Count the context and measure its duration; yield a function that returns the milliseconds so far.

        A cancelled call has no result: its pod was deleted, or the process ends.
        """
        started, result = self._clock(), "failed"
        try:
            yield lambda: milliseconds(self._clock() - started)
            result = "ok"
            self._pods_changed()
        except (ClaimRefusedError, InvalidRequestError):
            result = "refused"
            raise
        except NotFoundError as error:
            result = "refused" if error.reason == "NotFound" else "failed"
            raise
        except asyncio.CancelledError:
            result = ""
            raise
        finally:
            if result:
                count.labels(self._resource, result).inc()
                duration.labels(self._resource).observe(self._clock() - started)

    def _report_slow(self, subject: str, condition: Condition | None) -> None:
        """Note whether the preparation of a claim takes too long; report the first of these claims."""
        self._slow.pop(subject, None)
        if condition is not None:
            self._slow[subject] = condition
        self._conditions.replace("slow claims", self._resource, [*self._slow.values()][:1])

    def health(self) -> tuple[Sequence[DeviceHealth], Sequence[asyncio.Event]]:
        """Return the health of each device of a prepared claim, according to the last scan.

        One of the events is set as soon as the health may have changed.
        """
        snapshot = self._inventory.snapshot
        found = []
        for allocated in (each for record in self.prepared.values() for each in record.devices):
            device = snapshot.devices.get(allocated.id)
            problem = "the device does not exist any more"
            if device is not None:
                problem = "" if device.healthy or device.open_to_owner else device.detail or device.reason
            found.append(DeviceHealth(allocated.pool, allocated.name, problem))
        return found, (self._superseded, self._inventory.superseded(snapshot.revision))

    async def run(self, files: Subscription) -> None:
        """Repair until cancelled. Failures are logged, retried, and conditions. ``files`` is for this object alone."""
        while True:
            pause = min(self._repair_due - self._clock(), files.interval)
            # A repair that fails also changes files.
            changed = () if self._repair_failed else (files.changed,)
            await self._clock.wait(*changed, self._requested, timeout=max(0.0, pause))
            if not self._requested.is_set():
                await debounce(files.changed, self._timings.quiet, self._timings.retry)
            await self._round(files)

    def check(self) -> None:
        """Request a round about all claims, for example after a restart of the kubelet."""
        self._ask_due = self._ask_all_due = 0.0
        self._requested.set()

    async def _round(self, files: Subscription) -> None:
        """Repair what is on the host; ask the API server for the claims that are due, all of them after ``check``."""
        self._requested.clear()
        files.changed.clear()
        await self.repair(before=lambda: files.watch(self._watched))
        await self._restore_damaged()
        if self._clock() >= self._ask_due:
            await self._ask_for_claims()
        if self.api.ended.keys() - self._unserved and not self._repair_failed:
            self._repair_due = self._clock()

    async def repair(self, timeout: float | None = None, *, before: Callable[[], None] = lambda: None) -> None:
        """Make devices and specs match the records. See ``ClaimHost.repair``.

        Failures are logged, retried, and conditions. ``timeout`` is in seconds; ``before`` is called
        in the worker thread first.
        """
        function = partial(self._host.repair, dict(self.api.ended), before)
        try:
            self._check_scanned()
            failed, repaired = await self._worker.run(function, timeout, label="claim reconciliation")
            for kind, result in repaired:
                self._metrics.claim_repairs.labels(self._resource, kind, result).inc()
        except (OSError, PluginError) as error:
            failed = {"": error.with_traceback(None)}  # which refers to ``failed``
        self._unserved = {uid for uid, cause in failed.items() if isinstance(cause, FormerClaimError)}
        self._repair_failed = bool(failed.keys() - self._unserved)
        by_kind: dict[Kind, dict[str, Exception]] = {}
        for uid, cause in failed.items():
            by_kind.setdefault(_kind_of(uid, cause), {})[uid] = cause
        found = [_not_repaired(kind, errors) for kind, errors in by_kind.items()]
        self._conditions.replace("claim repairs", self._resource, found)
        pause = self._timings.recheck if self._repair_failed else self._timings.claim_round
        self._repair_due = self._clock() + pause

    async def _restore_damaged(self) -> None:
        """Write damaged records again, as the API server has their claims. What fails stays, and repairs report it."""
        for name, reference in self._store.damaged.items():
            if not reference.name:
                continue
            try:
                record = await self._record_of(reference, self._timings.hang)
                if record is None:
                    self.api.not_needed(name, None)
                    if name in self.api.ended:
                        await self.unprepare(reference, self._timings.hang)
                        LOG.warning("damaged claim record removed, no such claim exists", extra={"path": name})
                    continue
                function = partial(self._host.restore, name, record)
                await self._worker.run(function, self._timings.hang, label="claim restoration")
            except (OSError, PluginError) as error:
                fields = {"claim": reference.full_name, "uid": reference.uid, "error": str(error)}
                LOG.warning("damaged claim record not restored, retrying", extra=fields)
            else:
                LOG.warning("damaged claim record restored", extra={"claim": record.full_name, "uid": record.uid})
                self._repair_due = self._clock()

    async def _record_of(self, reference: ClaimReference, timeout: float) -> ClaimRecord | None:
        """Return the record of a claim according to the API server; None if it needs no device. Raises PluginError.

        Its devices need not be listed any more.
        """
        listed = await self._device_ids(timeout)
        claim = await self.api.find(reference.namespace, reference.name, timeout)
        if claim is None:
            return None
        unlisted = {(each.pool, each.device): slices.device_id(each.device) for each in claim.results}
        try:
            return record_of(reference, claim, self._driver, {**unlisted, **listed})
        except ClaimError:
            return None

    async def _ask_for_claims(self) -> None:
        """Ask for all claims, or between these times for the claims that were gone, one after another."""
        now = self._clock()
        everything, gone = now >= self._ask_all_due, self.api.gone
        self._ask_due = now + self._timings.claim_round
        if everything:
            self._ask_all_due = now + self._timings.claim_ask
        for record in [*self.prepared.values()]:
            is_due = everything or record.uid in gone
            if is_due and not await self.api.ask(record, self._timings.hang):  # the next round asks again
                self._ask_all_due = now if everything else self._ask_all_due
                return

    def _records_changed(self) -> None:
        self._superseded.set()
        self._superseded = asyncio.Event()
        prepared = self.prepared
        self.api.forget_except({**prepared, **dict.fromkeys(self._store.damaged)})
        self._metrics.claims_prepared.labels(self._resource).set(len(prepared))

    async def close(self, seconds: float) -> None:
        """Leave the claims to another process; nothing may follow. Raises WorkerTimeoutError."""
        await self._worker.run(self._store.close, seconds, label="release of the claim records")


def _kind_of(uid: str, error: Exception) -> Kind:
    """Return the kind of condition for an error of a repair; the UID is empty if it concerns no single claim."""
    if not uid or isinstance(error, CdiError | ClaimRecordError):
        return CLAIMS_FAILING
    return CLAIMS_UNSERVED if isinstance(error, FormerClaimError) else CLAIMS_NOT_REPAIRED


def _not_repaired(kind: Kind, errors: Mapping[str, Exception]) -> Condition:
    """Return the condition for claims that cannot be repaired or released; ``errors`` are by UID."""
    uid, error = next(iter(errors.items()))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    text = f"{f'claim {uid}' if uid else 'claims'} cannot be repaired: {error}{more}"
    return Condition(kind, text, fields={"uid": uid, "error": str(error)})


def _refusal(wanted: ClaimRecord, other: ClaimRecord, seconds: float) -> str:
    ids = frozenset(other.ids)
    names = [device.name for device in wanted.devices if device.id in ids or ids.isdisjoint(wanted.ids)]
    return f"device {', '.join(names)} is still prepared for claim {other.label}, after a wait of {seconds:.0f} s"
