"""What a ResourceClaim allocates of a driver's devices on this node, checked and ready to be prepared.

All functions here are pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aosp_plugin.framework.dra import names
from aosp_plugin.framework.dra.records import ClaimRecord, DeviceRecord, ParametersRecord, RequestRecord
from aosp_plugin.framework.errors import ClaimError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aosp_plugin.framework.dra.claim_source import Claim, Configuration, Result
    from aosp_plugin.framework.dra.interfaces import ClaimReference


MAX_PARAMETER_BYTES = 32 * 1024
"""Length of the JSON of a request's parameters, of class and claim, all of which are kept. The API server limits each
to 10 KiB (``OpaqueParametersMaxLength``), of 32 in a class and 32 in a claim."""


def device_ids(node_name: str, ids: Iterable[str]) -> Mapping[tuple[str, str], str]:
    """Return the ID of each device by its pool and name."""
    return {
        (names.pool_name(node_name, names.block_of(device_id)), names.device_name(device_id)): device_id
        for device_id in ids
    }


def record_of(reference: ClaimReference, claim: Claim, driver: str, ids: Mapping[tuple[str, str], str]) -> ClaimRecord:
    """Return the record of what is to be prepared for a claim; ``ids`` are the devices of this node.

    Results and parameters of other drivers are ignored. adminAccess is refused: a device belongs to one claim at a
    time, because two containers that use it would disturb each other, and a monitor reads the driver's metrics instead.
    So is a shared device (shareID), which this driver never offers. Raises ClaimError.
    """
    if claim.metadata.uid != reference.uid:
        raise ClaimError(f"the claim was replaced by another one of the same name, with UID {claim.metadata.uid}")
    if claim.status.allocation is None:
        raise ClaimError("the claim is not allocated")
    allocation = claim.status.allocation.devices
    results = [result for result in allocation.results if result.driver == driver]
    if not results:
        raise ClaimError(f"the claim has no device of {driver}")
    by_request: dict[str, list[DeviceRecord]] = {}
    for result in results:
        by_request.setdefault(result.request, []).append(_device(result, driver, ids))
    _check_unique(by_request)
    requests = tuple(
        RequestRecord(name, tuple(devices), _limited(name, parameters_of(name, allocation.config, driver), driver))
        for name, devices in by_request.items()
    )
    return ClaimRecord(reference.uid, reference.namespace, reference.name, "started", requests)


def parameters_of(request: str, configurations: Sequence[Configuration], driver: str) -> tuple[ParametersRecord, ...]:
    """Return the parameters for a request: those of the class before those of the claim, each in their order.

    An entry concerns a request if it names none, the request, or its subrequest.
    """
    concerned = {request, request.partition("/")[0]}
    found = [
        ParametersRecord("class" if each.source == "FromClass" else "claim", each.opaque.parameters)
        for each in configurations
        if each.opaque is not None
        and each.opaque.driver == driver
        and (not each.requests or not concerned.isdisjoint(each.requests))
    ]
    return tuple(sorted(found, key=lambda each: each.source == "claim"))


def _limited(request: str, parameters: tuple[ParametersRecord, ...], driver: str) -> tuple[ParametersRecord, ...]:
    size = sum(len(msgspec.json.encode(each.content)) for each in parameters)
    if size > MAX_PARAMETER_BYTES:
        raise ClaimError(
            f"request {request}: its parameters for {driver} have {size} bytes in all; allowed: up to "
            f"{MAX_PARAMETER_BYTES}"
        )
    return parameters


def _device(result: Result, driver: str, ids: Mapping[tuple[str, str], str]) -> DeviceRecord:
    if result.admin_access:
        raise ClaimError(f"request {result.request}: adminAccess is not supported by {driver}")
    if result.share_id:
        raise ClaimError(f"request {result.request}: {driver} has no devices that are allocated by shares (shareID)")
    device_id = ids.get((result.pool, result.device))
    if device_id is None:
        raise ClaimError(
            f"request {result.request}: device {result.device} of pool {result.pool} does not exist on this node"
        )
    return DeviceRecord(device_id, result.pool, result.device)


def _check_unique(by_request: Mapping[str, Sequence[DeviceRecord]]) -> None:
    seen: dict[str, str] = {}
    for request, devices in by_request.items():
        for device in devices:
            if device.id in seen:
                raise ClaimError(
                    f"device {device.name} is allocated twice, for the requests {seen[device.id]} and {request}"
                )
            seen[device.id] = request
