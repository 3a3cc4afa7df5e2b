"""Finds the devices of a backend that pods have under another name, or that another process offers.

The files of the host identify a device, because its name may differ: a resource was renamed, the API or the size of the
sets has changed, or two releases use the same directory. ``found`` is the result of the last scan of the backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.found_devices import NOT_ANSWERED, FoundDevices
from aosp_plugin.binder.devices.health import HealthProblem, Reason
from aosp_plugin.binder.devices.sets import unreplicated
from aosp_plugin.config.values import Api
from aosp_plugin.daemon.device_records import DeviceRecord, OtherRecord
from aosp_plugin.framework.dra.claim_records import Content
from aosp_plugin.framework.dra.slices import driver_name
from aosp_plugin.framework.podresources_client import Allocations

DISABLED = "pod_resources_socket is empty: end its pods, then remove its record from aosp-plugin in kubelet_dir"


class _Use(NamedTuple):
    """A device that a pod has, by the names in its allocation."""

    api: Api
    id: str
    """The ID without the number of a replica."""
    pod: str


class Known(NamedTuple):
    """What is known at one moment of the devices that pods have, and of those that processes offer."""

    own: Mapping[str, DeviceRecord]
    """The records of this process, by resource; those written later, too."""
    others: Sequence[OtherRecord] | None
    """Those of other resources on this host; None if they were never read."""
    allocations: Allocations | None
    """An answer of the kubelet; None before the first one."""
    claims: Sequence[Content]
    """The records of prepared claims, of all drivers."""
    failure: str
    """Why records could not be read; empty if they were."""


def held(backend: BinderBackend, found: FoundDevices, known: Known) -> dict[str, HealthProblem]:
    """Return the devices that pods have, or may have, under another name, and those that another process offers, by ID.

    What claims have is left out, see ``used_by_claims``.
    """
    own, others, allocations = known.own, known.others, known.allocations
    if others is None:
        return dict.fromkeys(found.paths, _in_use(f"the records of devices cannot be read: {known.failure}"))
    records = [*own.values(), *(record for record, _ in others)]
    problems = _offered_elsewhere(found, own[backend.resource_name], others) if backend.resource_name in own else {}
    if allocations is None:
        return problems | used_perhaps(backend, found, records, NOT_ANSWERED) | _used_by_plugin(backend, found, own)
    if allocations.problem:
        return problems | used_perhaps(backend, found, records, DISABLED)
    former = [record for record, is_served in others if not is_served]
    problems |= _used_unrecorded(found, former, allocations)
    return problems | _used_elsewhere(backend, found, records, allocations)


def held_since(
    backend: BinderBackend, known: Known, before: FoundDevices, found: FoundDevices
) -> dict[str, HealthProblem]:
    """Return which devices are held of those whose files have appeared since ``before``, by ID.

    Otherwise, the kubelet could allocate a device between the scan that finds it and the next comparison of all. The
    answer is older than the scan: since then, a pod may have got the same file under another name of this process,
    unless it had the device already. A driver reads the records of claims itself, and newer ones.
    """
    appeared = found.since(before)
    if not appeared.sets:
        return {}
    perhaps = used_perhaps(backend, appeared, [*known.own.values()], NOT_ANSWERED)
    uses = _uses(backend.resource_name, known.allocations) if known.allocations else ()
    own = {use.id for use in uses if use.api is backend.api}
    problems = {device_id: problem for device_id, problem in perhaps.items() if device_id not in own}
    if backend.api is Api.DEVICE_PLUGIN:
        problems |= used_by_claims(backend, appeared, known.claims)
    problems |= held(backend, appeared, known)
    return {device_id: problem for device_id, problem in problems.items() if device_id in appeared.sets}


def _used_elsewhere(
    backend: BinderBackend, found: FoundDevices, records: Iterable[DeviceRecord], allocations: Allocations
) -> dict[str, HealthProblem]:
    """Return the devices that pods have under another name or through another API, by ID.

    ``records`` are those of all resources on this host.
    """
    held: dict[str, HealthProblem] = {}
    for record in records:
        for use in _uses(record.resource, allocations):
            ids = {*filter(None, map(found.device_at, record.devices.get(use.id, ())))}
            if record.resource == backend.resource_name:
                ids.discard(use.id)
                if use.api is not backend.api:  # also a device that is not listed any more
                    held[use.id] = HealthProblem(Reason.IN_USE_BY_OTHER_API, str(Reason.IN_USE_BY_OTHER_API))
            held.update(dict.fromkeys(ids, _in_use(f"pod {use.pod} has it as {use.id} of {record.resource}")))
    return held


def _used_unrecorded(
    found: FoundDevices, former: Iterable[DeviceRecord], allocations: Allocations
) -> dict[str, HealthProblem]:
    """Return all devices, by ID, if a pod has a device of a former resource whose files are not in its record.

    ``former`` are the records of resources that nobody serves. A record that could not be written lacks devices.
    """
    for record in former:
        for use in _uses(record.resource, allocations):
            if not record.devices.get(use.id):
                text = f"pod {use.pod} has {use.id} of {record.resource}, and no record says which file that is"
                return dict.fromkeys(found.paths, _in_use(text))
    return {}


def used_perhaps(
    backend: BinderBackend, found: FoundDevices, records: Iterable[DeviceRecord], unknown: str
) -> dict[str, HealthProblem]:
    """Return the devices that were offered under another name, by ID: pods may have them.

    ``records`` are those of all resources on this host. ``unknown`` is why it is not known which pods have devices.
    """
    return {
        device_id: _in_use(f"it was offered as {former_id} of {record.resource}, and {unknown}")
        for record in records
        for former_id, paths in record.devices.items()
        if record.resource != backend.resource_name or paths != found.paths.get(former_id)
        for device_id in filter(None, map(found.device_at, paths))
        if (record.resource, former_id) != (backend.resource_name, device_id)
    }


def _used_by_plugin(
    backend: BinderBackend, found: FoundDevices, own: Mapping[str, DeviceRecord]
) -> dict[str, HealthProblem]:
    """Return the devices of a driver, by ID, that pods may have by a device plugin that served the same resource."""
    record = own.get(backend.resource_name)
    if record is None or not record.by_plugin or backend.api is not Api.DRA:
        return {}
    reason = Reason.IN_USE_BY_OTHER_API
    problem = HealthProblem(reason, f"{reason}: {NOT_ANSWERED}")
    return dict.fromkeys({*record.devices, *devices_of(found, record)}, problem)


def used_by_claims(backend: BinderBackend, found: FoundDevices, claims: Iterable[Content]) -> dict[str, HealthProblem]:
    """Return the devices that claims have by other drivers or IDs, by ID. ``claims`` are the records of all drivers.

    A claim keeps its device while its mount is lost, and before the kubelet reports it.
    """
    is_driver = backend.api is Api.DRA
    reason = Reason.IN_USE_BY_OTHER_RESOURCE if is_driver else Reason.IN_USE_BY_OTHER_API
    own = driver_name(backend.resource_name) if is_driver else ""
    return {
        device_id: HealthProblem(reason, f"{reason}: claim {content.claim.label} of {content.claim.driver} has it")
        for content in claims
        for device_id in filter(None, map(found.device_at, content.places))
        if content.claim.driver != own or device_id not in content.claim.ids
    }


def unrecorded(found: FoundDevices, record: DeviceRecord | None, error: str) -> dict[str, HealthProblem]:
    """Return the devices that the written record of their resource lacks, by ID; ``error`` is why it does."""
    recorded = {} if record is None else record.devices
    problem = HealthProblem(Reason.NOT_RECORDED, f"{Reason.NOT_RECORDED}: {error}")
    return {name: problem for name, paths in found.paths.items() if not {*paths}.issubset(recorded.get(name, ()))}


def _offered_elsewhere(
    found: FoundDevices, own: DeviceRecord, others: Iterable[OtherRecord]
) -> dict[str, HealthProblem]:
    """Return the devices that another process has offered for longer, for another resource, by ID."""
    reason = Reason.OFFERED_BY_OTHER_RESOURCE
    return {
        device_id: HealthProblem(reason, f"{reason}: a plugin on this node offers it as one of {record.resource}")
        for record, is_served in others
        if is_served and record.since < own.since
        for device_id in devices_of(found, record)
    }


def devices_of(found: FoundDevices, record: DeviceRecord) -> set[str]:
    """Return the IDs of the found devices that have a file in the record."""
    return {*filter(None, (found.device_at(path) for paths in record.devices.values() for path in paths))}


def used_ids(resource: str, allocations: Allocations | None) -> set[str] | None:
    """Return the IDs of the devices of a resource that pods have, through either API; None if they are unknown."""
    owners = None if allocations is None else allocations.owners.get(resource)
    return None if owners is None else {*map(unreplicated, owners)}


def _uses(resource: str, allocations: Allocations) -> Iterator[_Use]:
    owners = allocations.owners.get(resource, {})
    for api, ids in ((Api.DEVICE_PLUGIN, allocations.by_plugin), (Api.DRA, allocations.by_claim)):
        for device_id in ids.get(resource, ()):
            owner = owners[device_id][0]
            yield _Use(api, unreplicated(device_id), f"{owner.namespace}/{owner.name}")


def _in_use(detail: str) -> HealthProblem:
    reason = Reason.IN_USE_BY_OTHER_RESOURCE
    return HealthProblem(reason, f"{reason}: {detail}")
