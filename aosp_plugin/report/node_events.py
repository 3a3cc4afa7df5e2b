"""Events on the Node, written as a kubelet writes its own: core/v1, in the namespace default, with a count.

``kubectl describe node`` shows them. The core API is used, because a repeated Event may change its message there;
events.k8s.io/v1 only allows its series to change, so that the numbers of devices would be those of the first time
(pkg/apis/core/validation/events.go ``ValidateEventUpdate``). As in kubelets before 1.37, the UID of the involved object
is the node's name, so that no right to read Nodes is required; ``kubectl describe node`` asks for both.

As in client-go's recorder, a repetition is counted in the Event that exists: one for each reason of a resource,
which is written once a minute at most. Nothing is dropped: what waits is counted, with the message of the last time.
"""

import collections
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import ConflictError, NotFoundError, events, object_path
from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.timings import DEFAULT

COMPONENT: Final = "aosp-device-plugin"
NAMESPACE: Final = "default"
"""That of all Events of objects without a namespace (``legacyValidateEvent``)."""
MAX_MESSAGE: Final = 1024
"""Characters, ``NoteLengthLimit``."""
MAX_NODE_NAME: Final = 235
"""Characters of the node's name in the name of an Event, which may have 253."""

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
            self._due = now + DEFAULT.event_delay
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


@dataclass
class _Event:
    """An Event of one reason of a resource."""

    body: dict[str, Any]
    """With the number of times that it has happened, and the last message."""
    written: int = 0
    """The count that the API server has; 0 if it has no such Event."""
    due: float = 0.0
    """When it may be written again, by the monotonic clock."""


class NodeEvents:
    """Writes Events of what happens to the watched resources of one Node. For one event loop."""

    def __init__(
        self,
        api: ApiClient,
        node_name: str,
        watches: Sequence[ResourceWatch],
        *,
        pause: float = DEFAULT.event_pause,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` returns seconds since the epoch."""
        self._api = api
        self._node = node_name
        self._watches = watches
        self._pause = pause
        self._clock = clock
        self._events: dict[tuple[str, str], _Event] = {}

    def observe(self) -> None:
        """Read the state of the resources, and count what has happened."""
        for watch in self._watches:
            for occurrence in watch.occurrences():
                self.record(watch.resource, occurrence)

    def record(self, resource: str, occurrence: Occurrence) -> None:
        """Count an occurrence, which ``write`` writes. Requires microseconds and memory for the last one only."""
        now = datetime.fromtimestamp(int(self._clock()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = resource, occurrence.reason
        if key not in self._events:
            self._events[key] = _Event(self._body(occurrence, now))
        body = self._events[key].body
        body |= {"count": body["count"] + 1, "message": occurrence.message[:MAX_MESSAGE], "lastTimestamp": now}

    async def write(self) -> None:
        """Write what was recorded, as far as it is due. Raises ApiError."""
        for event in [*self._events.values()]:
            if event.body["count"] != event.written and time.monotonic() >= event.due:
                await self._write(event)
                event.due = time.monotonic() + self._pause

    async def _write(self, event: _Event) -> None:
        """Create the Event, or change its count, message and last time."""
        body = {**event.body}  # it may happen again meanwhile
        path = events(NAMESPACE)
        create = partial(self._api.create, path, body)
        changes = {name: body[name] for name in ("count", "message", "lastTimestamp")}
        patch = partial(self._api.patch, object_path(path, body["metadata"]["name"]), changes)
        try:
            await (patch() if event.written else create())
        except NotFoundError:  # it has expired, after an hour by default
            await create()
        except ConflictError:  # an earlier request had no answer, but was processed
            await patch()
        event.written = body["count"]

    def _body(self, occurrence: Occurrence, now: str) -> dict[str, Any]:
        """Return an Event that has not happened yet, with a name that no other one has."""
        name = f"{self._node[:MAX_NODE_NAME].rstrip('.-')}.{secrets.token_hex(8)}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "type": occurrence.type,
            "reason": occurrence.reason,
            "count": 0,
            "firstTimestamp": now,
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
        }
