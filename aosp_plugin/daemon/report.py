"""The status of the node as plain data: every device with its state, pods, health and leaks.

``/status`` and ``aosp-plugin status`` show it. The names of the fields are the names in the JSON document.
"""

from __future__ import annotations

import collections
import enum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from aosp_plugin.binder.discovery.names import natural_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aosp_plugin.daemon.leaks import Leaks
    from aosp_plugin.framework.inventory import Snapshot
    from aosp_plugin.framework.podresources_client import Allocations, Owner

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
    """Seconds since the epoch."""


class Counts(Struct, frozen=True, gc=False):
    """Number of devices in each state, and their total."""

    total: int
    free: int
    allocated: int
    unhealthy: int
    leaked: int
    unknown: int


class ResourceReport(Struct, frozen=True, gc=False):
    """One resource."""

    name: str
    registered: bool
    """Whether the plugin is registered and the kubelet has the whole device list."""
    problem: str
    """Why the plugin is not registered, or why the device list may be out of date."""
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
    """Why leak detection is off or incomplete; empty if it is complete."""


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


class ResourceStatus(NamedTuple):
    """Input of a ``ResourceReport``, read from a running plugin in its event loop."""

    name: str
    snapshot: Snapshot
    unready: str
    """Why the plugin is not registered; empty if it is."""
    unhealthy: str
    """Why the device list may be out of date; empty if it is not."""
    leaks: Leaks | None
    """None before the first leak scan."""
    binder_devices: Callable[[], Mapping[str, Sequence[str]]]
    """Returns the names of the existing binder devices by device ID."""
    leak_detection: bool = True
    """Whether leak detection is on."""


def resource_report(status: ResourceStatus, allocations: Allocations) -> ResourceReport:
    """Return the report of a resource, with the pods that ``allocations`` names for its devices."""
    owners = None if allocations.problem else allocations.owners.get(status.name, {})
    devices = (*_current_devices(status, owners), *_gone_devices(status.snapshot, owners or {}))
    states = collections.Counter(device.state for device in devices)
    return ResourceReport(
        name=status.name,
        registered=not status.unready,
        problem="; ".join(problem for problem in (status.unready, status.unhealthy) if problem),
        revision=status.snapshot.revision,
        truncated=status.snapshot.truncated,
        counts=Counts(total=len(devices), **{state.value: states[state] for state in State}),
        devices=devices,
        leaks=tuple(
            LeakReport(
                binder_device=holder.binder_device,
                pid=holder.pid,
                command=holder.command,
                container=holder.container,
                pod_uid=holder.pod_uid,
                user=holder.user,
                started=holder.started,
            )
            for holder in (status.leaks.leaked if status.leaks else ())
        ),
        leaks_known=status.leaks is not None,
        leaks_problem=_leaks_problem(status),
    )


def _current_devices(status: ResourceStatus, owners: Mapping[str, Sequence[Owner]] | None) -> Iterator[DeviceReport]:
    """Report every device of the snapshot, in its order. ``owners`` is None if they are unknown."""
    leaked = {holder.binder_device for holder in status.leaks.leaked} if status.leaks else set()
    binder_devices = status.binder_devices()
    published = len(status.snapshot.devices) - status.snapshot.truncated
    for position, device in enumerate(status.snapshot.devices):
        reason, detail = device.reason, device.detail
        if not reason and position >= published:
            reason, detail = TRUNCATED, f"{TRUNCATED}: not in the kubelet's list because of its 4 MiB message limit"
        names = tuple(binder_devices.get(device.id, ()))
        pods = _pods(owners, device.id)
        yield DeviceReport(
            device.id,
            _state(leaked=not leaked.isdisjoint(names), reason=reason, pods=pods, owners_known=owners is not None),
            reason,
            detail,
            device.numa_nodes,
            names,
            pods,
        )


def _gone_devices(snapshot: Snapshot, owners: Mapping[str, Sequence[Owner]]) -> Iterator[DeviceReport]:
    """Report the devices that are allocated to pods but no longer exist; none before the first scan."""
    if snapshot.revision:
        for device_id in sorted(owners.keys() - snapshot.by_id.keys(), key=natural_key):
            detail = f"{GONE}: allocated to a pod, but the device no longer exists"
            yield DeviceReport(device_id, State.UNHEALTHY, GONE, detail, (), (), _pods(owners, device_id))


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


def _leaks_problem(status: ResourceStatus) -> str:
    leaks = status.leaks
    if leaks is None:
        return (
            "no leak scan has completed yet"
            if status.leak_detection
            else "leak detection is off (leak_scan_interval: 0)"
        )
    if leaks.incomplete:
        return "leak detection is incomplete: missing hostPID, SYS_PTRACE or DAC_READ_SEARCH"
    if leaks.undecided:
        count = len(leaks.undecided)
        return f"leak detection is incomplete: the pods of {count} process{'es' * (count > 1)} are unknown"
    return ""
