"""Events on the Node, written as a kubelet writes its own: core/v1, in the namespace default, with a count.

``kubectl describe node`` shows them. The core API is used, because a repeated Event may change its message there;
events.k8s.io/v1 only allows its series to change, so that the numbers of devices would be those of the first time
(pkg/apis/core/validation/events.go ``ValidateEventUpdate``). As in kubelets before 1.37, the UID of the involved object
is the node's name, so that no right to read Nodes is required; ``kubectl describe node`` asks for both.

As in client-go's recorder, a repetition is counted in the existing Event. There is one Event for each reason of a
resource, and it is written once a minute at most, with the count and the latest message.
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
from aosp_plugin.framework.conditions import KUBELET_DISAGREES, NOT_REGISTERED, OVERRIDDEN, SECOND_PLUGIN
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.resource_server import ResourceServer

COMPONENT: Final = "aosp-device-plugin"
NAMESPACE: Final = "default"
"""The namespace of all Events about objects without a namespace (``legacyValidateEvent``)."""
MAX_MESSAGE: Final = 1024
"""Characters, ``NoteLengthLimit``."""
MAX_NODE_NAME: Final = 235
"""Characters of the node's name in the name of an Event, which may have 253."""

REMOVED: Final = "removed"
"""Reason of a device that is no longer listed, in addition to the reasons of the backend."""

NAMED: Final = 5
"""Devices that a message names; it counts the others."""

DELAY = 5.0
"""Seconds from a change of the devices to its Event, which has all changes until then."""

PAUSE = 60.0
"""Seconds between two requests of the same Event."""


class Occurrence(NamedTuple):
    """An occurrence that an Event counts."""

    type: Literal["Normal", "Warning"]
    reason: str
    """In CamelCase, for programs."""
    message: str


class KindEvents(NamedTuple):
    """The Events about the begin and the end of a kind of condition."""

    reason: str
    end_reason: str
    seconds: float
    """Age from which a condition is reported."""
    end_message: str
    """With the resource as ``{resource}``."""
    message: str = "{detail}"
    """With the detail of the condition as ``{detail}``."""


EVENTS_OF_KINDS: Final = {
    NOT_REGISTERED.name: KindEvents(
        "PluginNotRegistered",
        "PluginRegistered",
        15.0,
        "the kubelet has registered the plugin of {resource} again",
        "the kubelet has not registered the plugin: {detail}",
    ),
    # The plugin has asked the kubelet twice before this condition begins.
    KUBELET_DISAGREES.name: KindEvents(
        "KubeletLostDevices",
        "KubeletHasDevices",
        0.0,
        "the kubelet has all healthy devices of {resource} again",
    ),
    # A rolling update with ``maxSurge`` runs two plugins on purpose, for less than this time.
    SECOND_PLUGIN.name: KindEvents(
        "SecondPlugin",
        "SecondPluginEnded",
        60.0,
        "no other plugin of {resource} runs on this node any more",
    ),
}
"""The kinds of conditions that Events report, by name."""


class ResourceWatch:
    """Compares conditions and devices of one resource with those that were reported. For one event loop."""

    def __init__(self, server: ResourceServer, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch."""
        self.resource = server.resource_name
        self._server = server
        self._clock = clock
        self._reported: set[str] = set()
        """The kinds whose begin was reported, and whose end was not."""
        self._seen: Snapshot | None = None
        self._lost: set[str] = set()
        """Devices that were healthy, whose loss was reported, and that have not recovered."""
        self._due: float | None = None

    def occurrences(self) -> Iterator[Occurrence]:
        """Yield what has happened since the last call."""
        now = self._clock()
        found = {condition.kind.name: condition for condition in reversed(self._server.conditions())}
        if OVERRIDDEN.name in found:  # of two plugins, the later one reports the other
            found.pop(SECOND_PLUGIN.name, None)
        for kind, about in EVENTS_OF_KINDS.items():
            condition = found.get(kind)
            if condition is None and kind in self._reported:
                self._reported.discard(kind)
                yield Occurrence("Normal", about.end_reason, about.end_message.format(resource=self.resource))
            elif condition is not None and kind not in self._reported and now - condition.since >= about.seconds:
                self._reported.add(kind)
                message = about.message.format(detail=condition.detail)
                yield Occurrence("Warning", about.reason, f"{self.resource}: {message}")
        yield from self._device_changes(self._server.inventory.snapshot, now)

    def _device_changes(self, snapshot: Snapshot, now: float) -> Iterator[Occurrence]:
        """Yield occurrences for lost and recovered devices. In the first snapshot, no device is lost."""
        before = self._seen
        if before is None or before.revision == snapshot.revision:
            self._seen = snapshot if snapshot.revision else None
            self._due = None
            return
        if self._due is None:
            self._due = now + DELAY
        if now < self._due:
            return
        self._seen, self._due = snapshot, None
        changes = snapshot.changes_since(before)
        reasons = {device_id: reason for reason, ids in changes.unhealthy.items() for device_id in ids}
        lost = {
            device_id: reason
            for device_id, reason in (reasons | dict.fromkeys(changes.removed, REMOVED)).items()
            if device_id in before.devices and before.devices[device_id].healthy and device_id not in self._lost
        }
        recovered = [
            device_id
            for device_id in (*changes.healthy, *changes.added)
            if device_id in self._lost and snapshot.devices[device_id].healthy
        ]
        self._lost = (self._lost | lost.keys()).difference(recovered)
        if lost:
            yield Occurrence("Warning", "DevicesLost", _lost_message(self.resource, lost, snapshot))
        if recovered:
            yield Occurrence(
                "Normal", "DevicesRecovered", _recovered_message(self.resource, recovered, self._lost, snapshot)
            )


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
    """Return the first IDs and the number of the others."""
    rest = f" and {len(ids) - NAMED} others" if len(ids) > NAMED else ""
    return f"{', '.join(ids[:NAMED])}{rest}"


def _number(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


@dataclass
class _NodeEvent:
    """The Event for one reason of a resource."""

    body: dict[str, Any]
    """The object, with the present count and message."""
    written: int = 0
    """The count that the API server has; 0 if it has no such Event."""
    due: float = 0.0
    """When it may be written again, by the monotonic clock."""


class NodeEvents:
    """Writes the Events of one Node about the watched resources. For one event loop."""

    def __init__(
        self,
        api: ApiClient,
        node_name: str,
        watches: Sequence[ResourceWatch],
        *,
        pause: float = PAUSE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` returns seconds since the epoch."""
        self._api = api
        self._node = node_name
        self._watches = watches
        self._pause = pause
        self._clock = clock
        self._events: dict[tuple[str, str], _NodeEvent] = {}

    def observe(self) -> None:
        """Read the state of the resources, and count the occurrences."""
        for watch in self._watches:
            for occurrence in watch.occurrences():
                self.record(watch.resource, occurrence)

    def record(self, resource: str, occurrence: Occurrence) -> None:
        """Count an occurrence, which ``write`` writes later."""
        now = datetime.fromtimestamp(int(self._clock()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = resource, occurrence.reason
        if key not in self._events:
            self._events[key] = _NodeEvent(self._body(occurrence, now))
        body = self._events[key].body
        body |= {"count": body["count"] + 1, "message": occurrence.message[:MAX_MESSAGE], "lastTimestamp": now}

    async def write(self) -> None:
        """Write the recorded Events that are due. Raises ApiError."""
        for event in [*self._events.values()]:
            if event.body["count"] != event.written and time.monotonic() >= event.due:
                await self._write(event)
                event.due = time.monotonic() + self._pause

    async def _write(self, event: _NodeEvent) -> None:
        """Create the Event, or change its count, message and last time."""
        body = {**event.body}  # ``record`` may change it during the request
        path = events(NAMESPACE)
        create = partial(self._api.create, path, body)
        changes = {name: body[name] for name in ("count", "message", "lastTimestamp")}
        patch = partial(self._api.patch, object_path(path, body["metadata"]["name"]), changes)
        try:
            await (patch() if event.written else create())
        except NotFoundError:  # it has expired, after an hour by default
            await create()
        except ConflictError:  # an earlier request was processed, but its answer was lost
            await patch()
        event.written = body["count"]

    def _body(self, occurrence: Occurrence, now: str) -> dict[str, Any]:
        """Return a new Event with the count 0 and a unique name."""
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
