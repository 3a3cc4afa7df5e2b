"""Events on the Node, written as a kubelet writes its own: core/v1, in the namespace default, with a count.

``kubectl describe node`` shows them. The core API is used, because a repeated Event may change its message there;
events.k8s.io/v1 only allows its series to change, so that the numbers of devices would be those of the first time
(pkg/apis/core/validation/events.go ``ValidateEventUpdate``). As in kubelets before 1.37, the UID of the involved object
is the node's name, so that no right to read Nodes is required; ``kubectl describe node`` asks for both.

As in client-go's recorder, a repetition is counted in the Event that exists, and the number of requests is limited.
Unlike there, nothing is dropped: what waits is counted in one Event, whose message is that of the last time.
"""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from aosp_plugin.framework.apiserver.protocol import ConflictError, NotFoundError, events, object_path
from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aosp_plugin.framework.apiserver.client import ApiClient
    from aosp_plugin.framework.inventory import Snapshot
    from aosp_plugin.framework.resource_server import ResourceServer

COMPONENT: Final = "aosp-device-plugin"
NAMESPACE: Final = "default"
"""That of all Events of objects without a namespace (``legacyValidateEvent``)."""
MAX_MESSAGE: Final = 1024
"""Characters, ``NoteLengthLimit``."""
MAX_NODE_NAME: Final = 235
"""Characters of the node's name in the name of an Event, which may have 253."""
AGGREGATION: Final = 5.0
"""Seconds from a change of the devices to its Event, which has all changes until then."""

REMOVED: Final = "removed"
"""Reason of a device that is no longer listed, in addition to the reasons of the backend."""

NAMED: Final = 5
"""Devices that a message names; of the others, it has the number."""


class Occurrence(NamedTuple):
    """Something to write an Event of."""

    type: Literal["Normal", "Warning"]
    reason: str
    """In CamelCase, for programs."""
    message: str


class Condition(NamedTuple):
    """Something lasting, whose begin and end are occurrences."""

    reason: str
    end_reason: str
    seconds: float
    """How long it has to last to be reported."""
    end_message: str
    """With the resource as ``{resource}``."""


UNREGISTERED: Final = Condition(
    "PluginNotRegistered", "PluginRegistered", 15.0, "the kubelet has registered the plugin of {resource} again"
)
DISAGREEMENT: Final = Condition(
    "KubeletLostDevices", "KubeletHasDevices", 0.0, "the kubelet has all healthy devices of {resource} again"
)
"""It is known only after two rounds of questions to the kubelet, so it need not last."""
SECOND_PLUGIN: Final = Condition(
    "SecondPlugin", "SecondPluginEnded", 60.0, "no other plugin of {resource} runs on this node any more"
)
"""A rolling update with ``maxSurge`` runs two plugins on purpose, for less than this time."""


class ResourceWatch:
    """Compares the state of one resource with what was reported of it. For one event loop."""

    def __init__(self, server: ResourceServer, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self.resource = server.resource_name
        self._server = server
        self._clock = clock
        self._since: dict[Condition, float] = {}
        self._reported: set[Condition] = set()
        self._seen: Snapshot | None = None
        self._lost: set[str] = set()
        """Devices that were healthy, whose loss was reported, and that have not recovered."""
        self._due: float | None = None

    def occurrences(self) -> Iterator[Occurrence]:
        """Read the state once, and yield what has happened since the last time."""
        now = self._clock()
        for condition, problem in _problems(self._server).items():
            yield from self._changed(condition, problem, now)
        yield from self._device_changes(self._server.inventory.snapshot, now)

    def _changed(self, condition: Condition, problem: str, now: float) -> Iterator[Occurrence]:
        if problem:
            began = self._since.setdefault(condition, now)
            if now - began >= condition.seconds and condition not in self._reported:
                self._reported.add(condition)
                yield Occurrence("Warning", condition.reason, f"{self.resource}: {problem}")
            return
        self._since.pop(condition, None)
        if condition in self._reported:
            self._reported.discard(condition)
            yield Occurrence("Normal", condition.end_reason, condition.end_message.format(resource=self.resource))

    def _device_changes(self, snapshot: Snapshot, now: float) -> Iterator[Occurrence]:
        """Yield the devices that are lost and that have recovered. The first snapshot has lost no device."""
        before = self._seen
        if before is None or before.revision == snapshot.revision:
            self._seen = snapshot if snapshot.revision else None
            self._due = None
            return
        if self._due is None:
            self._due = now + AGGREGATION
        if now < self._due:
            return
        self._seen, self._due = snapshot, None
        reasons = {device.id: device.reason for device in snapshot.devices.values()}
        lost = {
            device.id: reason
            for device in before.devices.values()
            if device.healthy and device.id not in self._lost and (reason := reasons.get(device.id, REMOVED))
        }
        recovered = [device_id for device_id, reason in reasons.items() if not reason and device_id in self._lost]
        self._lost = (self._lost | lost.keys()).difference(recovered)
        if lost:
            yield Occurrence("Warning", "DevicesLost", _lost_message(self.resource, lost, snapshot))
        if recovered:
            yield Occurrence(
                "Normal", "DevicesRecovered", _recovered_message(self.resource, recovered, self._lost, snapshot)
            )


def _problems(server: ResourceServer) -> Mapping[Condition, str]:
    """Return what is wrong with a resource by condition; empty texts for those that do not hold."""
    problems = {
        UNREGISTERED: "" if server.registered else f"the kubelet has not registered the plugin: {server.unready}"
    }
    if isinstance(server, DevicePlugin):
        view = server.confirmation
        lacking = f"the kubelet has {view.allocatable} of {view.published} healthy devices"
        problems[DISAGREEMENT] = lacking if view.problem else ""
        # Of two plugins, the one that registered later reports both.
        problems[SECOND_PLUGIN] = "" if server.overridden else server.notice
    return problems


def _lost_message(resource: str, lost: Mapping[str, str], snapshot: Snapshot) -> str:
    """Return the number of lost devices by reason, some of their IDs, and how many are left."""
    counts = collections.Counter(lost.values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    return f"{_number(len(lost))} of {resource} lost: {reasons} ({_named([*lost])}); {_healthy(snapshot)}"


def _recovered_message(resource: str, recovered: Sequence[str], lost: set[str], snapshot: Snapshot) -> str:
    rest = f"; {_number(len(lost))} still lost" if lost else ""
    return f"{_number(len(recovered))} of {resource} healthy again ({_named(recovered)}){rest}; {_healthy(snapshot)}"


def _healthy(snapshot: Snapshot) -> str:
    return f"{snapshot.healthy} of {len(snapshot.devices)} are healthy"


def _named(ids: Sequence[str]) -> str:
    """Return the first few IDs, and the number of the others."""
    rest = f" and {len(ids) - NAMED} others" if len(ids) > NAMED else ""
    return f"{', '.join(ids[:NAMED])}{rest}"


def _number(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


class EventLimits(NamedTuple):
    """Of one process."""

    burst: int = 25
    """Requests that may follow each other at once; as ``defaultSpamBurst`` in client-go's tools/record."""
    refill: float = 300.0
    """Seconds after which one more may; as ``defaultSpamQPS``."""
    gap: float = 600.0
    """Seconds without a repetition after which the next time is an Event of its own; as
    ``defaultAggregateIntervalInSeconds``."""


@dataclass
class _Series:
    """An Event, and how often it has happened."""

    resource: str
    reason: str
    type: str
    message: str
    first: int
    """In nanoseconds since the epoch, as ``last``."""
    last: int
    count: int = 0
    written: int = 0
    """The count that the API server has; 0 if it has no such Event."""
    name: str = ""


class NodeEvents:
    """Writes Events of what happens to the watched resources of one Node. For one event loop."""

    def __init__(
        self,
        api: ApiClient,
        node_name: str,
        watches: Sequence[ResourceWatch],
        *,
        limits: EventLimits = EventLimits(),
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """``clock`` returns nanoseconds since the epoch."""
        self._api = api
        self._node = node_name
        self._watches = watches
        self._limits = limits
        self._clock = clock
        self._series: dict[tuple[str, str], _Series] = {}
        self._tokens = float(limits.burst)
        self._filled = time.monotonic()

    def observe(self) -> None:
        """Read the state of the resources, and count what has happened."""
        for watch in self._watches:
            for occurrence in watch.occurrences():
                self.record(watch.resource, occurrence)

    def record(self, resource: str, occurrence: Occurrence) -> None:
        """Count an occurrence, which ``write`` writes. Requires microseconds and memory for the last one only."""
        now, key = self._clock(), (resource, occurrence.reason)
        series = self._series.get(key)
        if series is None or (series.count == series.written and now - series.last > self._limits.gap * 1e9):
            series = _Series(resource, occurrence.reason, occurrence.type, "", now, now, name=self._name(now))
            self._series[key] = series
        series.count += 1
        series.last, series.message = now, occurrence.message[:MAX_MESSAGE]

    async def write(self) -> None:
        """Write what was recorded, as far as the limits allow. Raises ApiError."""
        waiting = [series for series in self._series.values() if series.count != series.written]
        for series in sorted(waiting, key=lambda series: series.last):
            if not self._has_token():
                return
            await self._write(series)
            self._tokens -= 1

    async def _write(self, series: _Series) -> None:
        """Create the Event, or change its count, message and last time."""
        count, path = series.count, events(NAMESPACE)
        if series.written:
            try:
                await self._patch(series)
            except NotFoundError:  # it has expired, after an hour by default
                series.name = self._name(self._clock())
                await self._api.create(path, self._body(series))
        else:
            try:
                await self._api.create(path, self._body(series))
            except ConflictError:  # an earlier request had no answer, but was processed
                await self._patch(series)
        series.written = count

    async def _patch(self, series: _Series) -> None:
        path = object_path(events(NAMESPACE), series.name)
        patch = {"count": series.count, "message": series.message, "lastTimestamp": _timestamp(series.last)}
        await self._api.patch(path, patch)

    def _body(self, series: _Series) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": NAMESPACE},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "type": series.type,
            "reason": series.reason,
            "message": series.message,
            "count": series.count,
            "firstTimestamp": _timestamp(series.first),
            "lastTimestamp": _timestamp(series.last),
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
        }

    def _name(self, now: int) -> str:
        """Return a name that no other Event has, like that of client-go's Events."""
        taken = {series.name for series in self._series.values()}
        while (name := f"{self._node[:MAX_NODE_NAME].rstrip('.-')}.{now:x}") in taken:
            now += 1
        return name

    def _has_token(self) -> bool:
        """Return whether a request may be sent now."""
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._filled) / self._limits.refill, self._limits.burst)
        self._filled = now
        return self._tokens >= 1


def _timestamp(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
