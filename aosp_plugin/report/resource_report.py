"""Reports of single resources: from the state of a running plugin to the plain data of ``report``."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.devices.sets import natural_key
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Allocations, Owner
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.report.document import (
    Counts,
    DeviceReport,
    DriverReport,
    LeakReport,
    PodContainer,
    ResourceReport,
    State,
)
from aosp_plugin.report.history import Since

if TYPE_CHECKING:
    from aosp_plugin.report.leaks import Holder, Leaks

TRUNCATED, GONE = "truncated", "gone"
"""Reasons in addition to the health reasons of the backend: a device does not fit into the list that the kubelet gets;
a device is allocated to a pod but no longer exists."""


LeakDetectionState = Literal["off", "complete", "pending", "incomplete", "failing"]
"""From the best to the worst: ``pending`` until the first scan has ended, ``incomplete`` if it could not inspect or
attribute some processes, ``failing`` while scans fail or hang, so that the result is outdated."""


class LeakScans(NamedTuple):
    """What leak detection has found in one resource, and whether that is current."""

    latest: Leaks | None = None
    """None before the first scan."""
    scanned: float | None = None
    """When the last scan ended, in seconds since the epoch; None before."""
    problem: str = ""
    """Why there is no newer result; empty if scans succeed."""


class ResourceStatus(NamedTuple):
    """A resource, and what was noted of it before. May be passed to any thread."""

    server: ResourceServer
    backend: BinderBackend
    since: Since
    leaks: LeakScans | None
    """None if leak detection is off."""

    @property
    def leaked(self) -> Sequence[Holder]:
        """The leaks as of the last scan."""
        return self.leaks.latest.leaked if self.leaks and self.leaks.latest else ()


def resource_report(status: ResourceStatus, allocations: Allocations) -> ResourceReport:
    """Return the report of a resource, with the pods that ``allocations`` names for its devices."""
    server, since = status.server, status.since
    snapshot, confirmation = server.inventory.snapshot, server.confirmation
    owners = None if allocations.problem else allocations.owners.get(server.resource_name, {})
    listed = tuple(_listed_devices(status, snapshot, owners))
    gone = tuple(_gone_devices(since, snapshot, owners or {}))
    states = collections.Counter(device.state for device in (*listed, *gone))
    healthy = snapshot.healthy
    leaks = status.leaks or LeakScans()
    return ResourceReport(
        name=server.resource_name,
        registered=since.registered,
        since=since.registration,
        problem=server.unready,
        problem_since=since.problem,
        notice=server.notice,
        kubelet_allocatable=confirmation.allocatable,
        kubelet_published=None if confirmation.unknown else confirmation.published,
        expected=status.backend.expected,
        revision=snapshot.revision,
        truncated=snapshot.truncated,
        counts=Counts(
            total=len(listed),
            healthy=healthy,
            unhealthy=len(listed) - healthy,
            allocated=len(owners or ()),
            free=states[State.FREE],
            unknown=states[State.UNKNOWN],
            leaked=states[State.LEAKED],
            gone=len(gone),
        ),
        devices=(*listed, *gone),
        leaks=tuple(_leak_report(holder, since) for holder in status.leaked),
        leak_detection=leak_detection_state(status.leaks),
        leaks_known=leaks.latest is not None,
        leaks_problem=_leaks_problem(status.leaks),
        leaks_scanned=leaks.scanned,
        driver=DriverReport(*server.driver) if server.driver else None,
    )


def _leak_report(holder: Holder, since: Since) -> LeakReport:
    fields = {name: value for name, value in holder._asdict().items() if name in LeakReport.__struct_fields__}
    return LeakReport(**fields, since=since.leaked.get(holder.binder_device, holder.started))


def _listed_devices(
    status: ResourceStatus, snapshot: Snapshot, owners: Mapping[str, Sequence[Owner]] | None
) -> Iterator[DeviceReport]:
    """Report every device of the snapshot, in its order. ``owners`` is None if they are unknown."""
    leaked = {holder.binder_device for holder in status.leaked}
    binder_devices = {
        advertised_id: tuple(binder_device.name for binder_device in device_set)
        for device_id, device_set in status.backend.binder_devices().items()
        for advertised_id in status.backend.advertised_ids(device_id)
    }
    spread_devices = {each: path for path, ids in status.backend.spread_devices().items() for each in ids}
    published = len(snapshot.devices) - snapshot.truncated
    for position, device in enumerate(snapshot.devices.values()):
        reason, detail = device.reason, device.detail
        if not reason and position >= published:
            reason, detail = TRUNCATED, f"{TRUNCATED}: not in the kubelet's list because of its 4 MiB message limit"
        names = binder_devices.get(device.id, ())
        pods = _pods(owners, device.id)
        state = _state(leaked=not leaked.isdisjoint(names), reason=reason, pods=pods, owners_known=owners is not None)
        since = _since(status.since, state, device.id, names)
        allocated = status.since.allocated.get(device.id) if pods else None
        spread = spread_devices.get(device.id, "")
        yield DeviceReport(device.id, state, reason, detail, device.numa_nodes, names, pods, since, allocated, spread)


def _gone_devices(since: Since, snapshot: Snapshot, owners: Mapping[str, Sequence[Owner]]) -> Iterator[DeviceReport]:
    """Report the devices that are allocated to pods but no longer exist; none before the first scan."""
    for device_id in sorted(owners.keys() - snapshot.devices.keys(), key=natural_key) if snapshot.revision else ():
        detail = f"{GONE}: allocated to a pod, but the device no longer exists"
        pods, allocated = _pods(owners, device_id), since.allocated.get(device_id)
        yield DeviceReport(device_id, State.UNHEALTHY, GONE, detail, (), (), pods, since.gone.get(device_id), allocated)


def _since(since: Since, state: State, device_id: str, binder_devices: Sequence[str]) -> float | None:
    """Return when a device that exists got into its state; None if it is not recorded."""
    if state is State.LEAKED:
        return min((since.leaked[name] for name in binder_devices if name in since.leaked), default=None)
    if state is State.UNHEALTHY:
        return since.unhealthy.get(device_id)
    return since.allocated.get(device_id) if state is State.ALLOCATED else None


def _pods(owners: Mapping[str, Sequence[Owner]] | None, device_id: str) -> tuple[PodContainer, ...]:
    return tuple(PodContainer(*owner) for owner in owners.get(device_id, ())) if owners else ()


def _state(*, leaked: bool, reason: str, pods: Sequence[PodContainer], owners_known: bool) -> State:
    if leaked:
        return State.LEAKED
    if reason:
        return State.UNHEALTHY
    if pods:
        return State.ALLOCATED
    return State.FREE if owners_known else State.UNKNOWN


def leak_detection_state(scans: LeakScans | None) -> LeakDetectionState:
    """Return the state of leak detection; ``scans`` is None if it is off."""
    if scans is None:
        return "off"
    if scans.problem:
        return "failing"
    if scans.latest is None:
        return "pending"
    return "incomplete" if scans.latest.incomplete or scans.latest.undecided else "complete"


def _leaks_problem(scans: LeakScans | None) -> str:
    """Return what ``leak_detection_state`` is because of; empty if leak detection is complete."""
    if scans is None:
        return "leak detection is off (leak_scan_interval: 0)"
    if scans.problem or scans.latest is None:
        return scans.problem or "no leak scan has completed yet"
    if scans.latest.incomplete:
        return f"leak detection is incomplete: {'; '.join(map(str, scans.latest.gaps))}"
    if count := len(scans.latest.undecided):
        return f"leak detection is incomplete: the pods of {count} process{'es' * (count > 1)} are unknown"
    return ""
