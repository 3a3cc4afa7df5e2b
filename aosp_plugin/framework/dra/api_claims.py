"""The ResourceClaims of a driver as the API server has them: what is allocated, and whether it is still needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import ApiError, ApiUnavailableError, NotFoundError
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.dra import slices
from aosp_plugin.framework.dra.claim_records import ClaimRecord, ClaimReference, DeviceRecord, RequestRecord
from aosp_plugin.framework.errors import ClaimError, ClaimRefusedError
from aosp_plugin.framework.runtime import Runtime

MAX_RECORD_BYTES = 64 * 1024
"""Length of the JSON of a record, with the parameters of class and claim for each request. Users write the parameters
of claims, of which the API server allows 32 with 10 KiB each for a request (``OpaqueParametersMaxLength``)."""


class Opaque(msgspec.Struct, frozen=True):
    """Parameters for a driver (OpaqueDeviceConfiguration)."""

    driver: str
    parameters: Any = None


class Configuration(msgspec.Struct, frozen=True):
    """An entry of the configuration of an allocation (DeviceAllocationConfiguration)."""

    source: str = ""
    """FromClass or FromClaim."""
    requests: tuple[str, ...] = ()
    """Names of requests or subrequests; empty for all."""
    opaque: Opaque | None = None


class Result(msgspec.Struct, frozen=True, rename="camel"):
    """A device that is allocated for a request (DeviceRequestAllocationResult)."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")


class DeviceAllocation(msgspec.Struct, frozen=True):
    """The devices of an allocation, of all drivers."""

    results: tuple[Result, ...] = ()
    config: tuple[Configuration, ...] = ()


class Allocation(msgspec.Struct, frozen=True):
    """The allocation of a claim by the scheduler."""

    devices: DeviceAllocation = DeviceAllocation()


class ClaimStatus(msgspec.Struct, frozen=True):
    """The status of a claim."""

    allocation: Allocation | None = None


class Claim(protocol.StoredObject, frozen=True):
    """A ResourceClaim (staging/src/k8s.io/api/resource/v1/types.go)."""

    status: ClaimStatus = ClaimStatus()

    @property
    def results(self) -> tuple[Result, ...]:
        """The allocated devices of all drivers; empty if the claim is not allocated."""
        return self.status.allocation.devices.results if self.status.allocation is not None else ()


class _Gone(NamedTuple):
    """A claim that the API server does not have; of a damaged record, without it."""

    record: ClaimRecord | None
    since: float
    """The time of the first answer, in seconds of the clock."""
    is_ended: bool = False
    """Whether a later answer was the same."""


class ApiClaims:
    """The claims of one driver as the API server has them. For one event loop."""

    def __init__(self, driver: str, get_claim: Callable[[str, str], Awaitable[Claim]], runtime: Runtime) -> None:
        """``get_claim`` returns the claim with a namespace and name."""
        self.get = get_claim
        self._driver = driver
        self._timings = runtime.timings
        self._clock = runtime.clock
        self._gone: dict[str, _Gone] = {}

    @property
    def gone(self) -> frozenset[str]:
        """The claims that the API server did not have, as in ``ended``."""
        return frozenset(self._gone)

    @property
    def ended(self) -> Mapping[str, ClaimRecord | None]:
        """Claims that have been gone for long enough, by UID; those of damaged records by file name."""
        return {key: gone.record for key, gone in self._gone.items() if gone.is_ended}

    async def find(self, namespace: str, name: str, timeout: float) -> Claim | None:
        """Return a claim within ``timeout`` seconds; None if it does not exist.

        An answer 404 that is not the API's, for example of a proxy, is an error. Raises ApiError.
        """
        try:
            async with asyncio.timeout(timeout):  # wait_for may lose a cancellation in Python 3.11
                return await self.get(namespace, name)
        except TimeoutError as error:
            raise ApiUnavailableError(None, f"no answer after {timeout:g} s") from error
        except NotFoundError as error:
            if error.reason != "NotFound":
                raise
            return None

    async def ask(self, record: ClaimRecord, timeout: float) -> bool:
        """Ask whether a prepared claim needs its devices; return whether the API server answers in ``timeout`` seconds.

        A claim that is no longer allocated, or has other devices now, does not need the devices of its record. A claim
        that the API server refuses to show may need them. A claim that has not needed them for
        ``Timings.claim_gone`` seconds has ended.
        """
        try:
            claim = await self.find(record.namespace, record.name, timeout)
        except ApiError as error:
            self.keep(record.uid)
            return not error.transient
        if claim is not None and is_needed(record, claim):
            self.keep(record.uid)
        elif record.driver == self._driver:  # another driver releases its claims itself
            self.not_needed(record.uid, record)
        return True

    def not_needed(self, key: str, record: ClaimRecord | None) -> None:
        """Note that the API server does not have a claim."""
        now, known = self._clock(), self._gone.get(key)
        if known is None or known.record != record:
            self._gone[key] = _Gone(record, now)
        elif now - known.since >= self._timings.claim_gone:
            self._gone[key] = known._replace(is_ended=True)

    def keep(self, uid: str) -> None:
        """Forget that a claim was gone, so that no repair releases it."""
        self._gone.pop(uid, None)

    def forget_except(self, known: Mapping[str, ClaimRecord | None]) -> None:
        """Forget the claims that have other records now, or none."""
        self._gone = {key: gone for key, gone in self._gone.items() if key in known and known[key] == gone.record}


async def get_claim(api: ApiClient, namespace: str, name: str) -> Claim:
    """Return a claim. Raises ApiError, NotFoundError if it does not exist, and ValueError if a name is invalid."""
    return await api.get(protocol.object_path(protocol.resource_claims(namespace), name), Claim)


def device_ids(node_name: str, ids: Iterable[str]) -> Mapping[tuple[str, str], str]:
    """Return the ID of each device by its pool and name."""
    return {(slices.pool_name(node_name, slices.block_of(each)), slices.device_name(each)): each for each in ids}


def is_needed(record: ClaimRecord, claim: Claim) -> bool:
    """Return whether a claim needs the devices of its record: it is the same claim, and has exactly these devices.

    Devices of other drivers do not matter.
    """
    allocated = {(result.pool, result.device) for result in claim.results if result.driver == record.driver}
    return claim.metadata.uid == record.uid and allocated == {(each.pool, each.name) for each in record.devices}


def record_of(reference: ClaimReference, claim: Claim, driver: str, ids: Mapping[tuple[str, str], str]) -> ClaimRecord:
    """Return the record of a claim that is to be prepared; ``ids`` are the devices of this node.

    Results and parameters of other drivers are ignored. adminAccess is refused, because two containers that use one
    device would disturb each other; a monitor can read the driver's metrics instead. A shared device (shareID) is
    refused, because this driver offers none. Raises ClaimError, for most reasons ClaimRefusedError.
    """
    if claim.metadata.uid != reference.uid:
        raise ClaimRefusedError(
            f"the claim was replaced by another one of the same name, with UID {claim.metadata.uid}"
        )
    if claim.status.allocation is None:
        raise ClaimRefusedError("the claim is not allocated")
    results = [result for result in claim.results if result.driver == driver]
    if not results:
        raise ClaimRefusedError(f"the claim has no device of {driver}")
    by_request: dict[str, list[DeviceRecord]] = {}
    seen: dict[str, str] = {}
    for result in results:
        device = _device(result, driver, ids)
        if device.id in seen:
            raise ClaimRefusedError(
                f"device {device.name} is allocated twice, for the requests {seen[device.id]} and {result.request}"
            )
        seen[device.id] = result.request
        by_request.setdefault(result.request, []).append(device)
    config = claim.status.allocation.devices.config
    requests = [
        RequestRecord(name, tuple(each), parameters_of(name, config, driver)) for name, each in by_request.items()
    ]
    record = ClaimRecord(driver, reference.uid, reference.namespace, reference.name, tuple(requests))
    if (size := len(msgspec.json.encode(record))) > MAX_RECORD_BYTES:
        raise ClaimRefusedError(
            f"the parameters for {driver} are too long: with those of all requests, the record of the claim has {size} "
            f"bytes; allowed: up to {MAX_RECORD_BYTES}"
        )
    return record


def parameters_of(request: str, configurations: Sequence[Configuration], driver: str) -> tuple[ClaimParameters, ...]:
    """Return the parameters for a request in their order, first of the class, then of the claim.

    An entry concerns a request if it names no request, this request, or its subrequest.
    """
    concerned = {request, request.partition("/")[0]}
    found = [
        ClaimParameters("class" if each.source == "FromClass" else "claim", each.opaque.parameters)
        for each in configurations
        if each.opaque is not None
        and each.opaque.driver == driver
        and (not each.requests or not concerned.isdisjoint(each.requests))
    ]
    return tuple(sorted(found, key=lambda each: each.source == "claim"))


def _device(result: Result, driver: str, ids: Mapping[tuple[str, str], str]) -> DeviceRecord:
    if result.admin_access:
        raise ClaimRefusedError(f"request {result.request}: adminAccess is not supported by {driver}")
    if result.share_id:
        raise ClaimRefusedError(
            f"request {result.request}: {driver} has no devices that are allocated by shares (shareID)"
        )
    device_id = ids.get((result.pool, result.device))
    if device_id is None:
        raise ClaimError(
            f"request {result.request}: device {result.device} of pool {result.pool} does not exist on this node"
        )
    return DeviceRecord(device_id, result.pool, result.device)
