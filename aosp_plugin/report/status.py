"""Makes the parts of the status report: the resources with their devices, and the problems of the node."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.catalog import GONE, RESTRICTED
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.binder.devices.health import REASONS, Reason
from aosp_plugin.binder.devices.sets import natural_key
from aosp_plugin.framework.conditions import TRUNCATED, Condition, Kind, Severity
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Allocations, Owner
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.report.document import (
    Counts,
    DeviceReport,
    DriverReport,
    PodContainer,
    Problem,
    ResourceReport,
    State,
)

NAMED_DEVICES = 10
"""Devices, and pods, that a problem names."""

_URGENCY = list(Severity)

_OF_DEVICES: Mapping[str, Kind] = {kind.name: kind for kind in (TRUNCATED, GONE, RESTRICTED)}
"""Kinds of which a problem names the devices."""


class ResourceStatus(NamedTuple):
    """The state of a resource, and the begins of the states of its devices. May be passed to any thread."""

    server: ResourceServer
    backend: BinderBackend
    found: FoundDevices
    since: Mapping[str, float]
    """By device ID."""


def resource_report(status: ResourceStatus, allocations: Allocations) -> ResourceReport:
    """Return the report of a resource, with the pods that have its devices according to ``allocations``."""
    server = status.server
    snapshot, confirmation = server.inventory.snapshot, server.confirmation
    owners = None if allocations.problem else allocations.owners.get(server.resource_name, {})
    listed = tuple(_listed_devices(status, snapshot, owners))
    gone = tuple(_gone_devices(status.since, snapshot, owners or {}))
    states = collections.Counter(device.state for device in (*listed, *gone))
    healthy = snapshot.healthy
    return ResourceReport(
        name=server.resource_name,
        registered=server.registered,
        since=server.registration.registered_changed,
        kubelet_allocatable=confirmation.allocatable,
        kubelet_published=None if confirmation.allocatable is None else confirmation.published,
        revision=snapshot.revision,
        truncated=snapshot.truncated,
        counts=Counts(
            total=len(listed),
            healthy=healthy,
            unhealthy=len(listed) - healthy,
            allocated=len(owners or ()),
            free=states[State.FREE],
            unknown=states[State.UNKNOWN],
            gone=len(gone),
        ),
        devices=(*listed, *gone),
        driver=DriverReport(*server.driver) if server.driver else None,
    )


def _listed_devices(
    status: ResourceStatus, snapshot: Snapshot, owners: Mapping[str, Sequence[Owner]] | None
) -> Iterator[DeviceReport]:
    """Report every device of the snapshot, in its order. ``owners`` is None if they are unknown."""
    found, advertised_ids = status.found, status.backend.advertised_ids
    binder_devices = {
        advertised_id: tuple(member.name for member in members)
        for device_id, members in found.members.items()
        for advertised_id in advertised_ids(device_id)
    }
    spread_devices: dict[str, tuple[str, ...]] = {}
    for path, ids in found.by_spread_device.items():
        for each in itertools.chain.from_iterable(map(advertised_ids, ids)):
            spread_devices[each] = (*spread_devices.get(each, ()), path)
    restricted = {each for device_id in found.restricted for each in advertised_ids(device_id)}
    published = len(snapshot.devices) - snapshot.truncated
    for position, device in enumerate(snapshot.devices.values()):
        reason, detail = device.reason, device.detail
        if not reason and position >= published:
            reason, detail = (
                TRUNCATED.name,
                f"{TRUNCATED.name}: not in the kubelet's list because of its 4 MiB message limit",
            )
        names = binder_devices.get(device.id, ())
        pods = _pods(owners, device.id)
        state = _state(reason, pods, owners_known=owners is not None)
        spread = spread_devices.get(device.id, ())
        own = (device.numa_nodes, names, pods, status.since.get(device.id), spread, device.id in restricted)
        yield DeviceReport(device.id, state, reason, detail, *own)


def _gone_devices(
    since: Mapping[str, float], snapshot: Snapshot, owners: Mapping[str, Sequence[Owner]]
) -> Iterator[DeviceReport]:
    """Report the devices that are allocated to pods but no longer exist; none before the first scan."""
    for device_id in sorted(owners.keys() - snapshot.devices.keys(), key=natural_key) if snapshot.revision else ():
        detail = f"{GONE.name}: allocated to a pod, but the device no longer exists"
        pods = _pods(owners, device_id)
        yield DeviceReport(device_id, State.UNHEALTHY, GONE.name, detail, (), (), pods, since.get(device_id))


def _pods(owners: Mapping[str, Sequence[Owner]] | None, device_id: str) -> tuple[PodContainer, ...]:
    return tuple(PodContainer(*owner) for owner in owners.get(device_id, ())) if owners else ()


def _state(reason: str, pods: Sequence[PodContainer], *, owners_known: bool) -> State:
    if reason:
        return State.UNHEALTHY
    if pods:
        return State.ALLOCATED
    return State.FREE if owners_known else State.UNKNOWN


def problems(
    resources: Sequence[tuple[ResourceReport, Sequence[Condition]]], node: Sequence[Condition]
) -> tuple[Problem, ...]:
    """Return the problems, most urgent first, of the resources with their conditions, and of the ``node``."""
    found = [problem for resource, conditions in resources for problem in _of_resource(resource, conditions)]
    found += [_of_condition("", condition) for condition in node]
    return tuple(sorted(found, key=lambda problem: _URGENCY.index(problem.severity)))


def fragment(kind: Kind) -> str:
    """Return the fragment of the heading in docs/runbook.md that a kind refers to; an alert's begins with Aosp."""
    return kind.heading or f"aosp{kind.alert}".lower()


def _of_resource(resource: ResourceReport, conditions: Sequence[Condition]) -> Iterator[Problem]:
    """Yield a problem for each reason of devices, and for each condition that is not among them."""
    of_devices = [*_of_devices(resource)]
    shown = {problem.kind for problem in of_devices}
    yield from (_of_condition(resource.name, each) for each in conditions if each.kind.name not in shown)
    yield from of_devices


def summary(condition: Condition) -> str:
    """Return a condition in a sentence."""
    return f"{condition.kind.title}: {condition.detail}" if condition.detail else condition.kind.title


def _of_condition(resource: str, condition: Condition) -> Problem:
    kind, text = condition.kind, summary(condition)
    return Problem(kind.severity, kind.name, resource, text, kind.action, fragment(kind), condition.since)


def _of_devices(resource: ResourceReport) -> Iterator[Problem]:
    """Yield a problem for each reason that unhealthy devices have, and one for restricted devices."""
    by_kind: dict[str, list[DeviceReport]] = {}
    for device in resource.devices:
        if device.reason:
            by_kind.setdefault(device.reason, []).append(device)
        elif device.restricted:
            by_kind.setdefault(RESTRICTED.name, []).append(device)
    for name, devices in by_kind.items():
        kind = _OF_DEVICES[name] if name in _OF_DEVICES else _kind_of(Reason(name))
        if kind.severity is not Severity.NOTICE and kind is not GONE:
            urgent = not resource.counts.healthy
            kind = kind._replace(severity=Severity.ERROR if urgent else Severity.WARNING)
        yield _devices_problem(resource.name, kind, devices)


def _kind_of(reason: Reason) -> Kind:
    row = REASONS[reason]
    severity = Severity.NOTICE if row.deliberate else Severity.WARNING
    return Kind(reason, row.title, row.action, heading=reason, severity=severity)


def _devices_problem(resource: str, kind: Kind, devices: Sequence[DeviceReport]) -> Problem:
    count = len(devices)
    pods = tuple(dict.fromkeys(f"{pod.namespace}/{pod.name}" for device in devices for pod in device.pods))
    return Problem(
        kind.severity,
        kind.name,
        resource,
        f"{count:,} device{'s' * (count > 1)} {kind.title}",
        kind.action,
        fragment(kind),
        min((device.since for device in devices if device.since is not None), default=None),
        count,
        tuple(device.id for device in devices[:NAMED_DEVICES]),
        pods[:NAMED_DEVICES],
        max(0, len(pods) - NAMED_DEVICES),
    )
