"""The state of the node as plain data: every device, who has it, what is ill and what leaks.

``report`` makes it of what is known; ``/status`` and ``aosp-plugin status`` are how people get it. The fields are the
names in the JSON. Nothing here looks anywhere.
"""

from __future__ import annotations

import collections
import enum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from aosp_plugin.binder.discovery.names import natural_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aosp_plugin.daemon.leaks import Leaks
    from aosp_plugin.framework.inventory import Snapshot
    from aosp_plugin.framework.podresources_client import Allocations, Owner

TRUNCATED, GONE = "truncated", "gone"
"""Reasons beside the plugin's own: the kubelet is not told of a device; a pod has one that the plugin has no longer."""


class State(enum.StrEnum):
    """What matters most of a device. Where several hold, the first one of these is told.

    A leak comes first: the next tenant would share a binder context with a stranger, however healthy the device is.
    Who has a device is told in its ``pods``, whatever its state.
    """

    LEAKED = "leaked"
    """A process outside its pods holds one of its nodes."""
    UNHEALTHY = "unhealthy"
    """It is not handed out, for a reason."""
    ALLOCATED = "allocated"
    """A pod has it."""
    FREE = "free"
    UNKNOWN = "unknown"
    """It is healthy, and whether a pod has it is not known."""


class PodContainer(Struct, frozen=True, gc=False):
    """A container that has a device."""

    namespace: str
    name: str
    """Of the pod."""
    container: str


class DeviceReport(Struct, frozen=True, gc=False):
    """One device."""

    id: str
    state: State
    reason: str
    """Why it is not handed out, in a word; empty where it is healthy."""
    detail: str
    """The same at more length, where there is more to say."""
    numa: tuple[int, ...]
    nodes: tuple[str, ...]
    """The names of its nodes that are there."""
    pods: tuple[PodContainer, ...]


class LeakReport(Struct, frozen=True, gc=False):
    """One process that holds one node and is in no pod that was given it."""

    node: str
    pid: int
    command: str
    container: str
    """The container's ID; empty outside any."""
    pod_uid: str
    user: int
    """Its effective user ID."""
    started: float
    """Seconds since the epoch."""


class Counts(Struct, frozen=True, gc=False):
    """How many devices are in each state; together they are the total."""

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
    """Whether the kubelet knows all the devices."""
    problem: str
    """Why not, or why the devices may not be as the host is."""
    revision: int
    """Of the list of devices; each change makes it one more."""
    truncated: int
    """How many devices the kubelet is not told of, as they don't fit into a message."""
    counts: Counts
    devices: tuple[DeviceReport, ...]
    leaks: tuple[LeakReport, ...]
    leaks_known: bool
    """Whether a leak scan has completed. If not, ``counts.leaked`` is 0 and says nothing."""
    leaks_problem: str
    """Why leaks may be missed; empty if leak detection is complete."""


class Known(Struct, frozen=True, gc=False):
    """Whether it is known who has which device, and why not."""

    known: bool
    problem: str


class Report(Struct, frozen=True, gc=False):
    """The whole node."""

    version: str
    node: str
    started: float
    """When the plugin began with its present configuration, in seconds since the epoch."""
    watching: str
    """How changes of files are noticed: ``inotify`` or ``polling``."""
    allocations: Known
    resources: tuple[ResourceReport, ...]


class ResourceStatus(NamedTuple):
    """What is known of one resource."""

    name: str
    snapshot: Snapshot
    unready: str
    """Why the kubelet does not know all the devices; empty where it does."""
    unhealthy: str
    """Why the devices may not be as the host is; empty where they are."""
    leaks: Leaks | None
    """Result of the last leak scan; None before the first one."""


class NodeStatus(NamedTuple):
    """What is known of the node at one moment."""

    watching: str
    allocations: Allocations
    resources: tuple[ResourceStatus, ...]
    leak_detection: bool
    """Whether leaks are scanned for at an interval."""


def report(
    seen: NodeStatus, nodes: Sequence[Mapping[str, Sequence[str]]], *, version: str, node: str, started: float
) -> Report:
    """Return the report of what was ``seen``.

    ``nodes`` has, for each resource in order, the names of each device's nodes by the device's ID.
    """
    problem = seen.allocations.problem
    return Report(
        version=version,
        node=node,
        started=started,
        watching=seen.watching,
        allocations=Known(not problem, problem),
        resources=tuple(
            _resource(one, seen.allocations, of_devices, leak_detection=seen.leak_detection)
            for one, of_devices in zip(seen.resources, nodes, strict=True)
        ),
    )


def _resource(
    one: ResourceStatus, allocations: Allocations, nodes: Mapping[str, Sequence[str]], *, leak_detection: bool
) -> ResourceReport:
    owners = None if allocations.problem else allocations.owners.get(one.name, {})
    leaks = one.leaks.found if one.leaks else ()
    devices = (*_devices(one, owners, nodes), *_gone(one.snapshot, owners or {}))
    states = collections.Counter(device.state for device in devices)
    return ResourceReport(
        name=one.name,
        registered=not one.unready,
        problem="; ".join(problem for problem in (one.unready, one.unhealthy) if problem),
        revision=one.snapshot.revision,
        truncated=one.snapshot.truncated,
        counts=Counts(total=len(devices), **{state.value: states[state] for state in State}),
        devices=devices,
        leaks=tuple(
            LeakReport(one.node, one.pid, one.command, one.container, one.pod_uid, one.user, one.started)
            for one in leaks
        ),
        leaks_known=one.leaks is not None,
        leaks_problem=_leaks_problem(one.leaks, leak_detection=leak_detection),
    )


def _devices(
    one: ResourceStatus, owners: Mapping[str, Sequence[Owner]] | None, nodes: Mapping[str, Sequence[str]]
) -> Iterator[DeviceReport]:
    """Report of every device that the plugin has, in its order."""
    leaked = {holder.node for holder in one.leaks.found} if one.leaks else set()
    advertised = len(one.snapshot.devices) - one.snapshot.truncated
    for place, device in enumerate(one.snapshot.devices):
        reason, detail = device.reason, device.detail
        if not reason and place >= advertised:
            reason, detail = TRUNCATED, f"{TRUNCATED}: the kubelet is not told of it"
        own = tuple(nodes.get(device.id, ()))
        pods = _pods(owners, device.id)
        yield DeviceReport(
            device.id,
            _state(leaked=not leaked.isdisjoint(own), reason=reason, pods=pods, known=owners is not None),
            reason,
            detail,
            device.numa_nodes,
            own,
            pods,
        )


def _gone(snapshot: Snapshot, owners: Mapping[str, Sequence[Owner]]) -> Iterator[DeviceReport]:
    """Report of the devices that pods have and the plugin no longer, once it has looked."""
    if snapshot.revision:
        for device_id in sorted(owners.keys() - snapshot.by_id.keys(), key=natural_key):
            detail = f"{GONE}: the plugin no longer has it, and a pod still does"
            yield DeviceReport(device_id, State.UNHEALTHY, GONE, detail, (), (), _pods(owners, device_id))


def _pods(owners: Mapping[str, Sequence[Owner]] | None, device_id: str) -> tuple[PodContainer, ...]:
    return tuple(PodContainer(*owner) for owner in owners.get(device_id, ())) if owners else ()


def _state(*, leaked: bool, reason: str, pods: Sequence[object], known: bool) -> State:
    if leaked:
        return State.LEAKED
    if reason:
        return State.UNHEALTHY
    if pods:
        return State.ALLOCATED
    return State.FREE if known else State.UNKNOWN


def _leaks_problem(leaks: Leaks | None, *, leak_detection: bool) -> str:
    if leaks is None:
        return "no leak scan has completed yet" if leak_detection else "leak detection is off (leak_scan_interval: 0)"
    if leaks.unreadable or not leaks.whole:
        return "leak detection is incomplete: missing hostPID, SYS_PTRACE or DAC_READ_SEARCH"
    if leaks.undecided:
        count = len(leaks.undecided)
        return f"leak detection is incomplete: the pods of {count} process{'es' * (count > 1)} are unknown"
    return ""
