"""Reports of single resources: from the state of a running plugin to the plain data of ``report``."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from aosp_plugin.binder.devices.sets import natural_key
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Allocations, Owner
from aosp_plugin.framework.resource_server import DriverState
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
    """Input of a ``ResourceReport``, read from a running plugin in its event loop."""

    name: str
    snapshot: Snapshot
    unready: str
    """Why the plugin is not registered, or its device list may be out of date; empty if all is well."""
    leaks: LeakScans | None
    """None if leak detection is off."""
    binder_devices: Callable[[], Mapping[str, Sequence[str]]]
    """Returns the names of the existing binder devices by device ID."""
    since: Since = Since()
    notice: str = ""
    kubelet_allocatable: int | None = None
    kubelet_published: int | None = None
    expected: int | None = None
    spread_devices: Callable[[], Mapping[str, str]] = dict
    """Returns the path of the spread device of each device by its ID."""
    driver: DriverState | None = None
    """None for a device plugin."""


def resource_report(status: ResourceStatus, allocations: Allocations) -> ResourceReport:
    """Return the report of a resource, with the pods that ``allocations`` names for its devices."""
    owners = None if allocations.problem else allocations.owners.get(status.name, {})
    listed = tuple(_listed_devices(status, owners))
    gone = tuple(_gone_devices(status, owners or {}))
    states = collections.Counter(device.state for device in (*listed, *gone))
    healthy = status.snapshot.healthy
    leaks = status.leaks or LeakScans()
    return ResourceReport(
        name=status.name,
        registered=status.since.registered,
        since=status.since.registration,
        problem=status.unready,
        problem_since=status.since.problem,
        notice=status.notice,
        kubelet_allocatable=status.kubelet_allocatable,
        kubelet_published=status.kubelet_published,
        expected=status.expected,
        revision=status.snapshot.revision,
        truncated=status.snapshot.truncated,
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
        leaks=tuple(_leak_report(holder, status.since) for holder in _leaked(status)),
        leak_detection=leak_detection_state(status.leaks),
        leaks_known=leaks.latest is not None,
        leaks_problem=_leaks_problem(status.leaks),
        leaks_scanned=leaks.scanned,
        driver=DriverReport(*status.driver) if status.driver else None,
    )


def _leaked(status: ResourceStatus) -> Sequence[Holder]:
    """Return the leaks as of the last scan."""
    return status.leaks.latest.leaked if status.leaks and status.leaks.latest else ()


def _leak_report(holder: Holder, since: Since) -> LeakReport:
    return LeakReport(
        binder_device=holder.binder_device,
        pid=holder.pid,
        command=holder.command,
        container=holder.container,
        pod_uid=holder.pod_uid,
        user=holder.user,
        started=holder.started,
        since=since.leaked.get(holder.binder_device, holder.started),
    )


def _listed_devices(status: ResourceStatus, owners: Mapping[str, Sequence[Owner]] | None) -> Iterator[DeviceReport]:
    """Report every device of the snapshot, in its order. ``owners`` is None if they are unknown."""
    leaked = {holder.binder_device for holder in _leaked(status)}
    binder_devices, spread_devices = status.binder_devices(), status.spread_devices()
    published = len(status.snapshot.devices) - status.snapshot.truncated
    for position, device in enumerate(status.snapshot.devices.values()):
        reason, detail = device.reason, device.detail
        if not reason and position >= published:
            reason, detail = TRUNCATED, f"{TRUNCATED}: not in the kubelet's list because of its 4 MiB message limit"
        names = tuple(binder_devices.get(device.id, ()))
        pods = _pods(owners, device.id)
        state = _state(leaked=not leaked.isdisjoint(names), reason=reason, pods=pods, owners_known=owners is not None)
        since = _since(status.since, state, device.id, names)
        allocated = status.since.allocated.get(device.id) if pods else None
        spread = spread_devices.get(device.id, "")
        yield DeviceReport(device.id, state, reason, detail, device.numa_nodes, names, pods, since, allocated, spread)


def _gone_devices(status: ResourceStatus, owners: Mapping[str, Sequence[Owner]]) -> Iterator[DeviceReport]:
    """Report the devices that are allocated to pods but no longer exist; none before the first scan."""
    if not status.snapshot.revision or not owners:
        return
    for device_id in sorted(owners.keys() - status.snapshot.devices.keys(), key=natural_key):
        detail = f"{GONE}: allocated to a pod, but the device no longer exists"
        since = status.since.gone.get(device_id)
        pods, allocated = _pods(owners, device_id), status.since.allocated.get(device_id)
        yield DeviceReport(device_id, State.UNHEALTHY, GONE, detail, (), (), pods, since, allocated)


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
