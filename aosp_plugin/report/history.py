"""What has changed on the node, and since when each device and each resource is in its state.

There is one ``History`` in the process, which outlives a configuration, and one ``ResourceHistory`` for each resource
of a configuration, which observes its plugin; ``observation`` passes it the results of the podresources API and of leak
detection. A state that was there before the plugin started, or before a result showed it, counts from then. The memory
is bounded: 200 changes of at most 1 kB.
"""

import collections
import heapq
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from aosp_plugin.binder.devices.sets import natural_key
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.observer import Observer
from aosp_plugin.framework.podresources_client import Owner
from aosp_plugin.report.document import Change, Event, ReloadReport

PodsByDevice = Mapping[str, tuple[Owner, ...]]  # by device ID

MAX_CHANGES = 100
"""Changes that are kept of allocations, and of all else: pods that come and go do not displace the others."""

NAMED_IN_CHANGE = 5
"""Devices that a change names."""

MAX_PODS = 10
"""Pods with changes of their own in one result of the kubelet; those of more pods are one change."""

_OF_ALLOCATIONS = frozenset({Event.ALLOCATED, Event.RELEASED})


class History:
    """The changes and the last reload of the process. For one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch."""
        self.clock = clock
        self._allocations: collections.deque[tuple[int, Change]] = collections.deque(maxlen=MAX_CHANGES)
        self._others: collections.deque[tuple[int, Change]] = collections.deque(maxlen=MAX_CHANGES)
        self._recorded = 0
        self.recent: tuple[Change, ...] = ()
        """The changes, newest first. The same object until the next change; may be passed to any thread."""
        self.last_reload: ReloadReport | None = None

    def record(
        self, event: Event, text: str, resource: str = "", devices: Collection[str] = (), *, pod: str = ""
    ) -> None:
        """Record a change of ``devices``, whose first ones in natural order are named."""
        named = tuple(heapq.nsmallest(NAMED_IN_CHANGE, devices, key=natural_key))
        self._recorded += 1
        kept = self._allocations if event in _OF_ALLOCATIONS else self._others
        kept.append((self._recorded, Change(self.clock(), event, resource, text, len(devices), named, pod)))
        merged = heapq.merge(reversed(self._others), reversed(self._allocations), reverse=True)
        self.recent = tuple(change for _, change in merged)


class Since(NamedTuple):
    """When each state began, in seconds since the epoch. Immutable; may be read in any thread."""

    registered: bool = False
    """Whether the resource is registered and the kubelet has an open stream."""
    registration: float = 0.0
    """When ``registered`` changed last, or the plugin started."""
    problem: float | None = None
    """When the resource's problem began; None if there is none."""
    unhealthy: Mapping[str, float] = {}
    """By device ID, also for devices that are truncated from the kubelet's list."""
    allocated: Mapping[str, float] = {}
    """By device ID: when its present owners got it."""
    gone: Mapping[str, float] = {}
    """By ID: devices that pods have and that no longer exist."""
    leaked: Mapping[str, float] = {}
    """By the name of the binder device."""


class ResourceHistory(Observer):
    """Keeps ``since`` of one resource current, and records its changes. To be called in the event loop.

    A call costs time only for devices that are unhealthy or allocated, except that the first one after a change of the
    devices has to index all of them if pods have any.
    """

    def __init__(self, resource: str, history: History) -> None:
        self._resource = resource
        self._history = history
        self._snapshot: Snapshot | None = None
        self._owners: PodsByDevice = {}
        self._confirmed_owners: PodsByDevice | None = None
        """The last owners that a kubelet with pods has named."""
        self._troubles = {"registration": history.clock()}
        self._scans: Literal["ok", "failed", "hung"] = "ok"
        self._lacking = False
        self.since = Since(registration=history.clock())
        """Replaced by a single assignment, and only by a change: equal values are the same object."""

    def published(self, snapshot: Snapshot, _since: float | None) -> None:
        """Record which devices are new, removed, unhealthy for another reason than before, or healthy again."""
        before, self._snapshot, now = self._snapshot, snapshot, self._history.clock()
        unadvertised = [*snapshot.devices.values()][len(snapshot.devices) - snapshot.truncated :]
        began = self.since.unhealthy
        unhealthy = {device.id: began.get(device.id, now) for device in (*snapshot.unhealthy, *unadvertised)}
        self.since = self.since._replace(unhealthy=unhealthy, gone=self._gone())
        if before is not None and before.revision:  # the devices at the start are not a change
            self._devices_changed(before, snapshot)

    def _devices_changed(self, before: Snapshot, snapshot: Snapshot) -> None:
        known, known_before = snapshot.devices, before.devices
        reasons_before = {device.id: device.reason for device in before.unhealthy}
        unhealthy: dict[str, list[str]] = {}
        for device in snapshot.unhealthy:
            if reasons_before.get(device.id) != device.reason:
                unhealthy.setdefault(device.reason, []).append(device.id)
        changes = [
            (Event.REMOVED, "no longer listed", [i for i in known_before if i not in known]),
            (Event.ADDED, "new", [i for i in known if i not in known_before]),
            *((Event.UNHEALTHY, f"unhealthy: {reason}", ids) for reason, ids in unhealthy.items()),
            (Event.HEALTHY, "healthy again", [i for i in reasons_before if i in known and not known[i].reason]),
        ]
        for event, text, ids in changes:
            if ids:
                self._record(event, text, ids)

    def allocated(self, owners: PodsByDevice, *, confirmed: bool) -> None:
        """Record the owners of the devices, and if ``confirmed``, which pods got and returned devices.

        An object that was recorded before costs nothing.
        """
        if owners is not self._owners:
            now, began, previous, self._owners = self._history.clock(), self.since.allocated, self._owners, owners
            allocated = {i: began[i] if previous.get(i) == pods else now for i, pods in owners.items()}
            self.since = self.since._replace(allocated=allocated, gone=self._gone())
        if confirmed:
            before, self._confirmed_owners = self._confirmed_owners, owners
            if before is not None and before is not owners:
                self._pods_changed(Event.RELEASED, "released by", _by_pod(before, owners))
                self._pods_changed(Event.ALLOCATED, "allocated to", _by_pod(owners, before))

    def _pods_changed(self, event: Event, text: str, devices: Mapping[str, list[str]]) -> None:
        if len(devices) > MAX_PODS:
            self._record(event, f"{text} {len(devices)} pods", set().union(*devices.values()))
            return
        for pod, ids in devices.items():
            self._record(event, f"{text} {pod}", ids, pod=pod)

    def leaked(self, binder_devices: Collection[str], scanned: float) -> None:
        """Record the leaked binder devices that a leak scan at the time ``scanned`` has found."""
        began = self.since.leaked
        if binder_devices == began.keys():
            return
        self.since = self.since._replace(leaked={name: began.get(name, scanned) for name in binder_devices})
        if new := self.since.leaked.keys() - began.keys():
            self._record(Event.LEAKED, "leaked: held open by a process outside its pod", new)
        if ended := began.keys() - self.since.leaked.keys():
            self._record(Event.LEAK_ENDED, "no longer leaked", ended)

    def kubelet_lacks(self, allocatable: int | None, published: int | None, *, lacking: bool) -> None:
        """Record that the kubelet has fewer devices than the plugin published, or has all of them again."""
        if lacking != self._lacking:
            self._lacking = lacking
            event = Event.KUBELET_LACKS if lacking else Event.KUBELET_HAS_ALL
            self._record(event, f"the kubelet has {allocatable} of {published} healthy devices")

    def has_problem(self, *, problem: bool) -> None:
        """Record whether the resource has a problem. It began with the first of the known troubles, or now."""
        if problem and self.since.problem is None:
            self.since = self.since._replace(problem=min(self._troubles.values(), default=self._history.clock()))
        elif not problem and self.since.problem is not None:
            self.since = self.since._replace(problem=None)

    def registration(self, result: Literal["ok", "failed", "refused"]) -> None:
        """Record a registration. A failed attempt changes nothing."""
        if result == "ok" and not self.since.registered:
            self._trouble("registration", result)
            self.since = self.since._replace(registered=True, registration=self._history.clock())
            self._record(Event.REGISTERED, "registered with the kubelet")

    def unregistered(self) -> None:
        """Record the end of a registration."""
        if self.since.registered:
            self._trouble("registration", "failed")
            self.since = self.since._replace(registered=False, registration=self._history.clock())
            self._record(Event.UNREGISTERED, "no longer registered with the kubelet")

    def lost_by_kubelet(self) -> None:
        """Record that the kubelet has lost the devices."""
        self._record(Event.KUBELET_LACKS, "the kubelet has lost the devices; the plugin registers again")

    def other_plugins(self, count: int) -> None:
        """Record the number of other plugins of the resource."""
        self._record(Event.OTHER_PLUGINS, f"{count or 'no'} other plugin{'s' * (count > 1)} of the resource")

    def kubelet_restarted(self) -> None:
        """Record that the kubelet has restarted."""
        self._record(Event.KUBELET_RESTARTED, "the kubelet has restarted")

    def scanned(self, result: Literal["ok", "failed", "hung"], seconds: float) -> None:
        """Record that scans begin to fail or hang, or succeed again."""
        self._trouble("scan", result, seconds if result == "hung" else 0.0)
        if result != self._scans:
            self._scans = result
            texts = {"ok": "device scans succeed again", "failed": "device scans fail", "hung": "a device scan hangs"}
            self._record(Event.SCANS_SUCCEED if result == "ok" else Event.SCANS_FAIL, texts[result])

    def host_updated(self, result: str) -> None:
        """Record whether updates of the host fail."""
        self._trouble("host update", result)

    def _trouble(self, name: str, result: str, seconds: float = 0.0) -> None:
        """Record whether there is a trouble, which began ``seconds`` ago."""
        if result == "ok":
            ended = self._troubles.pop(name, None)
            if ended is not None and not self._troubles:  # a later problem is another one
                self.has_problem(problem=False)
        else:
            self._troubles.setdefault(name, self._history.clock() - seconds)

    def _gone(self) -> Mapping[str, float]:
        """Return since when each device that pods have is gone; empty before the first scan."""
        began, snapshot, now = self.since.gone, self._snapshot, self._history.clock()
        if snapshot is None or not self._owners:
            return {}
        return {device_id: began.get(device_id, now) for device_id in self._owners.keys() - snapshot.devices.keys()}

    def _record(self, event: Event, text: str, devices: Collection[str] = (), *, pod: str = "") -> None:
        self._history.record(event, text, self._resource, devices, pod=pod)


def _by_pod(owners: PodsByDevice, others: PodsByDevice) -> Mapping[str, list[str]]:
    """Return the devices that a pod has in ``owners`` and not in ``others``, by ``namespace/name``."""
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
