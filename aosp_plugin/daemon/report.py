"""The status of the node as plain data: every device with its state, pods, health and leaks.

``/status`` and ``aosp-plugin status`` show it. The names of the fields are the names in the JSON document.
"""

from __future__ import annotations

import collections
import enum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from aosp_plugin.binder.discovery.names import natural_key
from aosp_plugin.daemon.ages import Since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aosp_plugin.daemon.leaks import Holder, Leaks
    from aosp_plugin.framework.inventory import Snapshot
    from aosp_plugin.framework.podresources_client import Allocations, Owner
    from aosp_plugin.framework.service.metrics import LeakDetectionState

TRUNCATED, GONE = "truncated", "gone"
"""Reasons in addition to the health reasons of the backend: a device does not fit into the list that the kubelet gets;
a device is allocated to a pod but no longer exists."""


class State(enum.StrEnum):
    """State of a device. If several apply, the first one in this order is reported.

    Leaks come first because the next tenant would share a binder context with another process, even on a healthy
    device. A device's ``pods`` are reported in every state.
    """

    LEAKED = "leaked"
    """A process outside its pods holds one of its binder devices open."""
    UNHEALTHY = "unhealthy"
    """Not allocatable; ``reason`` says why."""
    ALLOCATED = "allocated"
    """Healthy and allocated to a pod."""
    FREE = "free"
    """Healthy and not allocated."""
    UNKNOWN = "unknown"
    """Healthy; whether it is allocated is unknown."""


class PodContainer(Struct, frozen=True, gc=False):
    """A container that a device is allocated to."""

    namespace: str
    name: str
    """Name of the pod."""
    container: str


class DeviceReport(Struct, frozen=True, gc=False):
    """One device, as the kubelet counts it."""

    id: str
    state: State
    reason: str
    """Why it is unhealthy, in one word; empty if it is healthy."""
    detail: str
    """The reason in a sentence, if there is more to say."""
    numa: tuple[int, ...]
    binder_devices: tuple[str, ...]
    """Names of its binder devices that exist."""
    pods: tuple[PodContainer, ...]
    since: float | None = None
    """When the device got into its state, in seconds since the epoch; None if the state is free or unknown. What was
    so when the plugin started counts from then."""
    allocated_since: float | None = None
    """When its present pods got it, in any state; None if no pod has it."""
    spread_device: str = ""
    """Path of its spread device; empty if it has none."""


class LeakReport(Struct, frozen=True, gc=False):
    """A process that holds a binder device open and does not belong to a pod that the device is allocated to."""

    binder_device: str
    pid: int
    command: str
    container: str
    """Container ID; empty outside containers."""
    pod_uid: str
    user: int
    """Effective user ID."""
    started: float
    """When the process started, in seconds since the epoch."""
    since: float
    """When a leak scan found the binder device leaked, in seconds since the epoch."""


class Counts(Struct, frozen=True, gc=False):
    """Numbers of devices. They overlap: an allocated device may be unhealthy and leaked, too."""

    total: int
    """Devices that exist, or are missing but still listed: ``healthy`` and ``unhealthy`` ones."""
    healthy: int
    """Devices that the plugin advertises as healthy to the kubelet."""
    unhealthy: int
    """The other devices, including those that are truncated from the kubelet's list."""
    allocated: int
    """Devices that pods have, in any state, including ``gone`` ones. 0 if allocations are unknown."""
    free: int
    """Devices in the state ``free``."""
    unknown: int
    """Devices in the state ``unknown``."""
    leaked: int
    """Devices in the state ``leaked``."""
    gone: int
    """Devices that pods have and that no longer exist. They are not part of ``total``."""


class ResourceReport(Struct, frozen=True, gc=False):
    """One resource."""

    name: str
    registered: bool
    """Whether the plugin is registered and the kubelet has an open stream."""
    since: float
    """When ``registered`` changed last, in seconds since the epoch."""
    problem: str
    """Why the plugin is not registered, or why the device list may be out of date."""
    problem_since: float | None
    """When the problem began, in seconds since the epoch; None if there is none."""
    notice: str
    """Which other plugins of the resource run on the node; empty if there is none."""
    kubelet_allocatable: int | None
    """Number of healthy devices that the kubelet has; None if it has not answered that."""
    kubelet_published: int | None
    """Number of healthy devices that the plugin had published when the kubelet answered; None likewise. It differs from
    ``counts.healthy`` for some seconds after a change."""
    expected: int | None
    """Number of devices that ``provision`` orders; None if the plugin provisions none."""
    revision: int
    """Number of the device list; increases with each change."""
    truncated: int
    """Number of devices missing in the kubelet's list because of its message size limit."""
    counts: Counts
    devices: tuple[DeviceReport, ...]
    leaks: tuple[LeakReport, ...]
    leaks_known: bool
    """Whether a leak scan has completed. If not, ``counts.leaked`` is 0 and says nothing."""
    leaks_problem: str
    """Why leak detection is off, incomplete or out of date; empty if it is complete."""
    leaks_scanned: float | None
    """When the last leak scan ended, in seconds since the epoch; None before."""


class Known(Struct, frozen=True, gc=False):
    """Whether it is known which pod has which device."""

    known: bool
    problem: str
    """Why they are unknown."""


class Report(Struct, frozen=True, gc=False):
    """The whole Kubernetes node."""

    version: str
    node: str
    """Name of the Kubernetes node."""
    started: float
    """When the plugin started with its current configuration, in seconds since the epoch."""
    watching: str
    """How file changes are detected: ``inotify`` or ``polling``."""
    allocations: Known
    resources: tuple[ResourceReport, ...]


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
    """Returns the path of the spread device of each device by its ID. It depends on the snapshot and on the next field,
    by which two statuses are compared."""
    known_spread_devices: tuple[str, ...] = ()


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
        leaks_known=leaks.latest is not None,
        leaks_problem=_leaks_problem(status.leaks),
        leaks_scanned=leaks.scanned,
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
    for position, device in enumerate(status.snapshot.devices):
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
    for device_id in sorted(owners.keys() - status.snapshot.by_id.keys(), key=natural_key):
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
        return "leak detection is incomplete: missing hostPID, SYS_PTRACE or DAC_READ_SEARCH"
    if count := len(scans.latest.undecided):
        return f"leak detection is incomplete: the pods of {count} process{'es' * (count > 1)} are unknown"
    return ""
