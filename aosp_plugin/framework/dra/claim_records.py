"""The allocation of a ResourceClaim, and the record that a driver keeps while the claim is prepared.

All functions here except ``get_claim`` are pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.dra import slices
from aosp_plugin.framework.errors import ClaimError, ClaimRefusedError

MAX_RECORD_BYTES = 64 * 1024
"""Length of the JSON of a record, with the parameters of class and claim for each request. Users write the parameters
of claims, of which the API server allows 32 with 10 KiB each for a request (``OpaqueParametersMaxLength``)."""


UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?")
"""UIDs of claims that can be part of file and device names."""


class ClaimReference(NamedTuple):
    """A ResourceClaim as the kubelet names it; another claim may have the same namespace and name later."""

    namespace: str
    name: str
    uid: str

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"


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


class DeviceRecord(msgspec.Struct, frozen=True):
    """A device that is allocated to a claim."""

    id: str
    pool: str
    name: str
    """Name in the ResourceSlice."""


class RequestRecord(msgspec.Struct, frozen=True):
    """A request of a claim, with the devices that are allocated for it."""

    name: str
    """The name in the allocation: REQUEST, or REQUEST/SUBREQUEST for an alternative of a request."""
    devices: tuple[DeviceRecord, ...]
    parameters: tuple[ClaimParameters, ...] = ()
    """The strongest last."""

    @property
    def main_name(self) -> str:
        """The name to which containers refer, without the name of the subrequest."""
        return self.name.partition("/")[0]

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs of the devices."""
        return tuple(device.id for device in self.devices)


class ClaimRecord(msgspec.Struct, frozen=True):
    """A claim that is prepared, or is to be. Immutable; may be read in any thread."""

    driver: str
    """The driver whose devices these are."""
    uid: str
    namespace: str
    name: str
    requests: tuple[RequestRecord, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs of all devices."""
        return tuple(device.id for device in self.devices)

    @property
    def devices(self) -> tuple[DeviceRecord, ...]:
        """All devices."""
        return tuple(device for request in self.requests for device in request.devices)

    @property
    def reference(self) -> ClaimReference:
        """The claim as the kubelet names it."""
        return ClaimReference(self.namespace, self.name, self.uid)

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME."""
        return self.reference.full_name

    @property
    def label(self) -> str:
        """The claim as error messages name it."""
        return f"{self.full_name} (UID {self.uid})"


class PreparedDevice(NamedTuple):
    """A device of a prepared claim, as the kubelet passes it to containers."""

    requests: tuple[str, ...]
    """Names of the requests that have the device, without the names of subrequests."""
    pool: str
    device: str
    """Name in the ResourceSlice."""
    cdi_devices: tuple[str, ...]
    """Qualified CDI names, such as example.com/gpu=NAME; empty if the container gets nothing with this device."""


def uid_problem(uid: str) -> str | None:
    """Return why a UID cannot be part of file and device names; None if it can."""
    return None if UID.fullmatch(uid) else f"the UID {uid!r} has other characters than letters, digits and dashes"


async def get_claim(api: ApiClient, namespace: str, name: str) -> Claim:
    """Return a claim. Raises ApiError, NotFoundError if it does not exist, and ValueError if a name is invalid."""
    return await api.get(protocol.object_path(protocol.resource_claims(namespace), name), Claim)


def device_ids(node_name: str, ids: Iterable[str]) -> Mapping[tuple[str, str], str]:
    """Return the ID of each device by its pool and name."""
    return {
        (
            slices.pool_name(node_name, slices.block_of(device_id)),
            slices.device_name(device_id),
        ): device_id
        for device_id in ids
    }


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
