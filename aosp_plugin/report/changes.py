"""What has changed on the node: the last changes with their times.

There is one ``History`` in the process, which outlives a configuration, and one ``ResourceChanges`` for each resource
of a configuration, which observes its plugin. A change costs time for the devices that are unhealthy or allocated, as
in ``ages``. The memory is bounded: 200 changes of at most 1 kB.
"""

from __future__ import annotations

import collections
import heapq
import time
from typing import TYPE_CHECKING, Literal

from aosp_plugin.binder.discovery.names import natural_key
from aosp_plugin.framework.observer import Observer
from aosp_plugin.report.document import Change, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from aosp_plugin.framework.inventory import Snapshot
    from aosp_plugin.framework.podresources_client import Owner

MAX_CHANGES = 100
"""Changes that are kept of allocations, and of all else: pods that come and go do not displace the others."""

NAMED_DEVICES = 5
"""Devices that a change names."""

MAX_PODS = 10
"""Pods with changes of their own in one result of the kubelet; those of more pods are one change."""

_OF_ALLOCATIONS = frozenset({Event.ALLOCATED, Event.RELEASED})


class History:
    """The changes of the process. For one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch."""
        self.clock = clock
        self._allocations: collections.deque[tuple[int, Change]] = collections.deque(maxlen=MAX_CHANGES)
        self._others: collections.deque[tuple[int, Change]] = collections.deque(maxlen=MAX_CHANGES)
        self._recorded = 0
        self._recent: tuple[Change, ...] | None = ()

    @property
    def recent(self) -> tuple[Change, ...]:
        """The changes, newest first. The same object until the next change; may be passed to any thread."""
        if self._recent is None:
            merged = heapq.merge(reversed(self._others), reversed(self._allocations), reverse=True)
            self._recent = tuple(change for _, change in merged)
        return self._recent

    def record(
        self,
        event: Event,
        text: str,
        resource: str = "",
        devices: Collection[str] = (),
        *,
        in_order: bool = False,
        pod: str = "",
    ) -> None:
        """Record a change of ``devices``, which are ``in_order`` if the first ones are to be named."""
        iterator = iter(devices)
        named = (
            tuple(device for device, _ in zip(iterator, range(NAMED_DEVICES), strict=False))
            if in_order
            else tuple(heapq.nsmallest(NAMED_DEVICES, iterator, key=natural_key))
        )
        self._recorded += 1
        kept = self._allocations if event in _OF_ALLOCATIONS else self._others
        kept.append((self._recorded, Change(self.clock(), event, resource, text, len(devices), named, pod)))
        self._recent = None


class ResourceChanges(Observer):
    """Records the changes of one resource. Its methods must be called in the event loop."""

    def __init__(self, resource: str, history: History) -> None:
        self._resource = resource
        self._history = history
        self._snapshot: Snapshot | None = None
        self._reasons: Mapping[str, str] = {}
        self._owners: Mapping[str, tuple[Owner, ...]] | None = None
        self._leaked: Collection[str] = frozenset()
        self._scans: Literal["ok", "failed", "hung"] = "ok"
        self._lacking = False
        self._registered = False

    def published(self, snapshot: Snapshot, _since: float | None) -> None:
        """Record which devices are new, removed, unhealthy for another reason than before, or healthy again."""
        before, self._snapshot = self._snapshot, snapshot
        reasons, self._reasons = self._reasons, {device.id: device.reason for device in snapshot.unhealthy}
        if before is None or not before.revision:
            return  # the devices at the start are not a change
        unhealthy: dict[str, list[str]] = {}
        for device_id, reason in self._reasons.items():
            if reasons.get(device_id) != reason:
                unhealthy.setdefault(reason, []).append(device_id)
        ended = [device_id for device_id in reasons if device_id not in self._reasons]
        known, known_before = snapshot.devices, before.devices
        healthy = [device_id for device_id in ended if device_id in known]
        if len(before.devices) != len(snapshot.devices) or len(healthy) < len(ended) or not (unhealthy or ended):
            self._devices(Event.REMOVED, "no longer listed", [i for i in known_before if i not in known])
            self._devices(Event.ADDED, "new", [i for i in known if i not in known_before])
        for reason, device_ids in unhealthy.items():
            self._devices(Event.UNHEALTHY, f"unhealthy: {reason}", device_ids)
        self._devices(Event.HEALTHY, "healthy again", healthy)

    def _devices(self, event: Event, text: str, device_ids: Collection[str]) -> None:
        if device_ids:
            self._record(event, text, device_ids, in_order=True)

    def allocated(self, owners: Mapping[str, tuple[Owner, ...]]) -> None:
        """Record which pods got and returned devices. An object that was recorded before costs nothing."""
        before, self._owners = self._owners, owners
        if before is None or before is owners:
            return
        self._pods(Event.RELEASED, "released by", _by_pod(before, owners))
        self._pods(Event.ALLOCATED, "allocated to", _by_pod(owners, before))

    def _pods(self, event: Event, text: str, devices: Mapping[str, list[str]]) -> None:
        if len(devices) > MAX_PODS:
            ids = {device_id for device_ids in devices.values() for device_id in device_ids}
            self._record(event, f"{text} {len(devices)} pods", ids)
            return
        for pod, device_ids in devices.items():
            self._record(event, f"{text} {pod}", device_ids, pod=pod)

    def leaked(self, binder_devices: Collection[str]) -> None:
        """Record which binder devices are leaked, and which are no longer."""
        before, self._leaked = self._leaked, frozenset(binder_devices)
        if new := self._leaked - frozenset(before):
            self._record(Event.LEAKED, "leaked: held open by a process outside its pod", new)
        if ended := frozenset(before) - self._leaked:
            self._record(Event.LEAK_ENDED, "no longer leaked", ended)

    def kubelet_lacks(self, allocatable: int | None, published: int | None, *, lacking: bool) -> None:
        """Record that the kubelet has fewer devices than the plugin published, or has all of them again."""
        if lacking != self._lacking:
            self._lacking = lacking
            event = Event.KUBELET_LACKS if lacking else Event.KUBELET_HAS_ALL
            self._record(event, f"the kubelet has {allocatable} of {published} healthy devices")

    def registration(self, result: Literal["ok", "failed", "refused"]) -> None:
        """Record a registration. A failed attempt changes nothing."""
        if result == "ok" and not self._registered:
            self._registered = True
            self._record(Event.REGISTERED, "registered with the kubelet")

    def unregistered(self) -> None:
        """Record the end of a registration."""
        if self._registered:
            self._registered = False
            self._record(Event.UNREGISTERED, "no longer registered with the kubelet")

    def lost_by_kubelet(self) -> None:
        """Record that the kubelet has lost the devices."""
        self._record(Event.KUBELET_LACKS, "the kubelet has lost the devices; the plugin registers again")

    def other_plugins(self, count: int) -> None:
        """Record the number of other plugins of the resource."""
        text = (
            f"{count} other plugin{'s' * (count > 1)} of the resource" if count else "no other plugin of the resource"
        )
        self._record(Event.OTHER_PLUGINS, text)

    def kubelet_restarted(self) -> None:
        """Record that the kubelet has restarted."""
        self._record(Event.KUBELET_RESTARTED, "the kubelet has restarted")

    def scanned(self, result: Literal["ok", "failed", "hung"], _seconds: float) -> None:
        """Record that scans begin to fail or hang, or succeed again."""
        if result == self._scans:
            return
        self._scans = result
        texts = {"ok": "device scans succeed again", "failed": "device scans fail", "hung": "a device scan hangs"}
        self._record(Event.SCANS_SUCCEED if result == "ok" else Event.SCANS_FAIL, texts[result])

    def _record(
        self, event: Event, text: str, devices: Collection[str] = (), *, in_order: bool = False, pod: str = ""
    ) -> None:
        self._history.record(event, text, self._resource, devices, in_order=in_order, pod=pod)


def _by_pod(
    owners: Mapping[str, tuple[Owner, ...]], others: Mapping[str, tuple[Owner, ...]]
) -> Mapping[str, list[str]]:
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
