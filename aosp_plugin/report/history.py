"""The changes on the node, and when the state of each device began.

There is one ``History`` in the process, and one ``ResourceHistory`` for each resource, which reads its server;
``observation`` passes it the results of the podresources API. A state begins when the plugin notices it. The memory is
bounded: 200 changes of at most 1 kB.
"""

import collections
import heapq
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from aosp_plugin.binder.devices.sets import natural_key
from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.conditions import KUBELET_DISAGREES, NOT_REGISTERED, SCAN_FAILED, SECOND_PLUGIN
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Owner
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.report.document import Change, ChangeKind, ReloadReport

PodsByDevice = Mapping[str, tuple[Owner, ...]]  # by device ID

MAX_CHANGES = 100
"""Changes of allocations that are kept, and other changes: pods that come and go do not displace the latter."""

NAMED_IN_CHANGE = 5
"""Devices that a change names."""

MAX_PODS = 10
"""Pods in one result of the kubelet up to which each pod gets a change of its own; more pods share one."""

INTERVAL = 1.0
"""Seconds between two readings of the conditions of a resource."""

_OF_ALLOCATIONS = frozenset({ChangeKind.ALLOCATED, ChangeKind.RELEASED})

_OF_CONDITIONS = {
    NOT_REGISTERED.name: (ChangeKind.UNREGISTERED, ChangeKind.REGISTERED, "registered with the kubelet"),
    KUBELET_DISAGREES.name: (
        ChangeKind.KUBELET_LACKS,
        ChangeKind.KUBELET_HAS_ALL,
        "the kubelet has all healthy devices",
    ),
    SECOND_PLUGIN.name: (ChangeKind.OTHER_PLUGINS, ChangeKind.OTHER_PLUGINS, "no other plugin of the resource"),
    SCAN_FAILED.name: (ChangeKind.SCANS_FAIL, ChangeKind.SCANS_SUCCEED, "device scans succeed again"),
}
"""The kinds of changes for the begin and the end of each recorded condition, and the text of the end."""


class History:
    """The changes and the last reload of the process. For one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch."""
        self.clock = clock
        self._allocations: collections.deque[tuple[int, Change]] = collections.deque(maxlen=MAX_CHANGES)
        self._others: collections.deque[tuple[int, Change]] = collections.deque(maxlen=MAX_CHANGES)
        self._recorded = 0
        self.recent: tuple[Change, ...] = ()
        """The changes, newest first. Immutable; may be read in any thread."""
        self.last_reload: ReloadReport | None = None

    def record(
        self, kind: ChangeKind, text: str, resource: str = "", devices: Collection[str] = (), *, pod: str = ""
    ) -> None:
        """Record a change of ``devices``, and the names of the first of them in natural order."""
        named = tuple(heapq.nsmallest(NAMED_IN_CHANGE, devices, key=natural_key))
        self._recorded += 1
        kept = self._allocations if kind in _OF_ALLOCATIONS else self._others
        kept.append((self._recorded, Change(self.clock(), kind, resource, text, len(devices), named, pod)))
        merged = heapq.merge(reversed(self._others), reversed(self._allocations), reverse=True)
        self.recent = tuple(change for _, change in merged)


class Since(NamedTuple):
    """When each state began, in seconds since the epoch. Immutable; may be read in any thread."""

    unhealthy: Mapping[str, float] = {}
    """By device ID, also for devices that are truncated from the kubelet's list."""
    allocated: Mapping[str, float] = {}
    """By device ID: when the present owners got it."""
    gone: Mapping[str, float] = {}
    """By ID of a device that pods have and that no longer exists."""


class ResourceHistory:
    """Keeps ``since`` of one resource current, and records its changes. For the event loop.

    A call costs time for unhealthy and allocated devices only, except for the first call after a change of the devices.
    """

    def __init__(self, resource: str, history: History) -> None:
        """Record the changes of ``resource`` in ``history``."""
        self._resource = resource
        self._history = history
        self._snapshot: Snapshot | None = None
        self._owners: PodsByDevice = {}
        self._confirmed_owners: PodsByDevice | None = None
        """The owners in the last confirmed result of the kubelet."""
        self._conditions: Mapping[str, str] = {NOT_REGISTERED.name: ""}
        """The details of the conditions at the last reading, by the name of their kind."""
        self._kubelet_restarts = 0
        self.since = Since()
        """Replaced by a single assignment; may be read in any thread."""

    async def follow(self, server: ResourceServer) -> None:
        """Record the changes of a server until cancelled."""
        while True:
            server.registration.changed.clear()
            self.read(server)
            superseded = server.inventory.superseded(server.inventory.snapshot.revision)
            await wait_any(superseded, server.registration.changed, timeout=INTERVAL)

    def read(self, server: ResourceServer) -> None:
        """Record what has changed since the last call."""
        if server.inventory.snapshot.revision:
            self.published(server.inventory.snapshot)
        restarts, self._kubelet_restarts = self._kubelet_restarts, server.registration.kubelet_restarts
        if self._kubelet_restarts != restarts:
            self._record(ChangeKind.KUBELET_RESTARTED, "the kubelet has restarted")
        conditions = {each.kind.name: each.detail for each in server.conditions()}
        before, self._conditions = self._conditions, conditions
        for kind, (begins, ends, end) in _OF_CONDITIONS.items():
            if kind in conditions and kind not in before:
                self._record(begins, conditions[kind])
            elif kind in before and kind not in conditions:
                self._record(ends, end)

    def published(self, snapshot: Snapshot) -> None:
        """Record which devices are new, removed, unhealthy for another reason than before, or healthy again."""
        before, self._snapshot, now = self._snapshot, snapshot, self._history.clock()
        if before is snapshot:
            return
        unadvertised = [*snapshot.devices.values()][len(snapshot.devices) - snapshot.truncated :]
        began = self.since.unhealthy
        unhealthy = {device.id: began.get(device.id, now) for device in (*snapshot.unhealthy, *unadvertised)}
        self.since = self.since._replace(unhealthy=unhealthy, gone=self._gone())
        if before is not None and before.revision:  # the devices at the start are not a change
            self._devices_changed(before, snapshot)

    def _devices_changed(self, before: Snapshot, snapshot: Snapshot) -> None:
        found = snapshot.changes_since(before)
        changes = [
            (ChangeKind.REMOVED, "no longer listed", found.removed),
            (ChangeKind.ADDED, "new", found.added),
            *((ChangeKind.UNHEALTHY, f"unhealthy: {reason}", ids) for reason, ids in found.unhealthy.items()),
            (ChangeKind.HEALTHY, "healthy again", found.healthy),
        ]
        for kind, text, ids in changes:
            if ids:
                self._record(kind, text, ids)

    def allocated(self, owners: PodsByDevice, *, confirmed: bool) -> None:
        """Record the owners of the devices, and if ``confirmed``, which pods got and returned devices."""
        if owners is not self._owners:
            now, began, previous, self._owners = self._history.clock(), self.since.allocated, self._owners, owners
            allocated = {i: began[i] if previous.get(i) == pods else now for i, pods in owners.items()}
            self.since = self.since._replace(allocated=allocated, gone=self._gone())
        if confirmed:
            before, self._confirmed_owners = self._confirmed_owners, owners
            if before is not None and before is not owners:
                self._pods_changed(ChangeKind.RELEASED, "released by", _by_pod(before, owners))
                self._pods_changed(ChangeKind.ALLOCATED, "allocated to", _by_pod(owners, before))

    def _pods_changed(self, kind: ChangeKind, text: str, devices: Mapping[str, list[str]]) -> None:
        if len(devices) > MAX_PODS:
            self._record(kind, f"{text} {len(devices)} pods", set().union(*devices.values()))
            return
        for pod, ids in devices.items():
            self._record(kind, f"{text} {pod}", ids, pod=pod)

    def _gone(self) -> Mapping[str, float]:
        """Return when each device vanished that pods have, by ID; empty before the first scan."""
        began, snapshot, now = self.since.gone, self._snapshot, self._history.clock()
        if snapshot is None or not self._owners:
            return {}
        return {device_id: began.get(device_id, now) for device_id in self._owners.keys() - snapshot.devices.keys()}

    def _record(self, kind: ChangeKind, text: str, devices: Collection[str] = (), *, pod: str = "") -> None:
        self._history.record(kind, text, self._resource, devices, pod=pod)


def _by_pod(owners: PodsByDevice, others: PodsByDevice) -> Mapping[str, list[str]]:
    """Return the devices that each pod has in ``owners`` and not in ``others``, by ``namespace/name``."""
    devices: dict[str, list[str]] = {}
    for device_id, pods in owners.items():
        other_pods = others.get(device_id, ())
        if pods is not other_pods and pods != other_pods:
            other_names = set(_names(other_pods))
            for name in dict.fromkeys(_names(pods)):
                if name not in other_names:
                    devices.setdefault(name, []).append(device_id)
    return devices


def _names(pods: Iterable[Owner]) -> Iterable[str]:
    return (f"{pod.namespace}/{pod.name}" for pod in pods)
