"""Events on the Node, written as a kubelet writes its own: core/v1, in the namespace default.

``kubectl describe node`` shows them. As in kubelets before 1.37, the UID of the involved object is the node's name, so
that no right to read Nodes is required; ``kubectl describe node`` asks for both.
"""

import collections
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import ConflictError, events
from aosp_plugin.framework.conditions import OVERRIDDEN, SECOND_PLUGIN, Condition, Conditions, Severity
from aosp_plugin.framework.inventory import Inventory, Snapshot
from aosp_plugin.report.status import summary

COMPONENT: Final = "aosp-device-plugin"
NAMESPACE: Final = "default"
"""The namespace of all Events about objects without a namespace (``legacyValidateEvent``)."""
MAX_MESSAGE: Final = 1024
"""Characters, ``NoteLengthLimit``."""
MAX_NODE_NAME: Final = 235
"""Characters of the node's name in the name of an Event, which may have 253."""
MAX_WAITING: Final = 100
"""Events that wait for the API server; of more, the oldest are dropped."""

REMOVED: Final = "removed"
"""Reason of a device that is no longer listed, in addition to the reasons of the backend."""

NAMED: Final = 5
"""Devices that a message names; it counts the others."""

LASTING = 60.0
"""Seconds from which a condition is reported. A rolling update with ``maxSurge`` runs two plugins for less."""

DELAY = 5.0
"""Seconds from a change of the devices to its Event, which has all changes until then."""

PAUSE = 60.0
"""Seconds between two Events about the devices of a resource."""


class Occurrence(NamedTuple):
    """What an Event reports."""

    type: Literal["Normal", "Warning"]
    reason: str
    """In CamelCase, for programs."""
    message: str


class ConditionWatch:
    """Compares the conditions of a resource, or of the process, with those that were reported. For one event loop."""

    def __init__(self, conditions: Conditions, resource: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns a monotonic time in seconds: how long a condition lasts does not depend on the date."""
        self._conditions = conditions
        self._resource = resource
        self._clock = clock
        self._reported: dict[str, Condition] = {}
        """The conditions whose begin was reported, and whose end was not, by the names of their kinds."""

    def occurrences(self) -> Iterator[Occurrence]:
        """Yield which conditions last, and which have ended, since the last call."""
        conditions = sorted(self._conditions.of(self._resource), key=lambda each: each.started, reverse=True)
        found = {each.kind.name: each for each in conditions}  # the oldest of each kind
        silent = SECOND_PLUGIN.name if OVERRIDDEN.name in found else ""  # of two, the later one reports the other
        about = f"{self._resource}: " if self._resource else ""
        for name in sorted(self._reported.keys() - found.keys()):
            ended = self._reported.pop(name)
            yield Occurrence("Normal", f"{_camel_case(name)}Ended", f"{about}no longer: {summary(ended)}")
        for name, condition in found.items():
            lasts = self._clock() - condition.started >= LASTING
            is_new = name not in self._reported and name != silent
            if lasts and is_new and condition.kind.severity is not Severity.NOTICE:
                self._reported[name] = condition
                yield Occurrence("Warning", _camel_case(name), f"{about}{summary(condition)}")


class DeviceWatch:
    """Compares the devices of one resource with those that were reported. For one event loop."""

    def __init__(self, inventory: Inventory, resource: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns a monotonic time in seconds."""
        self._inventory = inventory
        self._resource = resource
        self._clock = clock
        self._seen: Snapshot | None = None
        self._due: float | None = None
        self._earliest = 0.0

    def occurrences(self) -> Iterator[Occurrence]:
        """Yield which devices were lost, and which are healthy now. In the first snapshot, no device is lost."""
        snapshot, before, now = self._inventory.snapshot, self._seen, self._clock()
        if before is None or before.revision == snapshot.revision:
            self._seen = snapshot if snapshot.revision else None
            self._due = None
            return
        if self._due is None:
            self._due = max(now + DELAY, self._earliest)
        if now < self._due:
            return
        self._seen, self._due, self._earliest = snapshot, None, now + PAUSE
        changes = snapshot.changes_since(before)
        reasons = {device_id: reason for reason, ids in changes.unhealthy.items() for device_id in ids}
        reasons |= dict.fromkeys(changes.removed, REMOVED)
        was_healthy = {device_id for device_id, device in before.devices.items() if device.healthy}
        lost = {device_id: reason for device_id, reason in reasons.items() if device_id in was_healthy}
        usable = [device_id for device_id in (*changes.healthy, *changes.added) if snapshot.devices[device_id].healthy]
        left = f"{snapshot.healthy} of {len(snapshot.devices)} are healthy"
        if lost:
            counts = ", ".join(
                f"{count} {reason}" for reason, count in sorted(collections.Counter(lost.values()).items())
            )
            text = f"{_number(len(lost))} of {self._resource} lost: {counts} ({_named([*lost])}); {left}"
            yield Occurrence("Warning", "DevicesLost", text)
        if usable:
            text = f"{_number(len(usable))} of {self._resource} healthy now ({_named(usable)}); {left}"
            yield Occurrence("Normal", "DevicesRecovered", text)


def _named(ids: Sequence[str]) -> str:
    """Return the first IDs and the number of the others."""
    rest = f" and {len(ids) - NAMED} others" if len(ids) > NAMED else ""
    return f"{', '.join(ids[:NAMED])}{rest}"


def _number(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


class NodeEvents:
    """Writes the Events of one Node. For one event loop."""

    def __init__(
        self,
        api: ApiClient,
        node_name: str,
        watches: Sequence[ConditionWatch | DeviceWatch],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` returns seconds since the epoch."""
        self._api = api
        self._node = node_name
        self._watches = watches
        self._clock = clock
        self._waiting: collections.deque[dict[str, Any]] = collections.deque(maxlen=MAX_WAITING)

    async def write(self) -> None:
        """Create the Events of what has happened since the last call. Raises ApiError; the next call continues."""
        for watch in self._watches:
            self._waiting += map(self._event, watch.occurrences())
        while self._waiting:
            with contextlib.suppress(ConflictError):  # an earlier request was processed, but its answer was lost
                await self._api.create(events(NAMESPACE), self._waiting[0])
            self._waiting.popleft()

    def _event(self, occurrence: Occurrence) -> dict[str, Any]:
        """Return a new Event with a unique name."""
        name = f"{self._node[:MAX_NODE_NAME].rstrip('.-')}.{secrets.token_hex(8)}"
        now = datetime.fromtimestamp(int(self._clock()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "type": occurrence.type,
            "reason": occurrence.reason,
            "message": occurrence.message[:MAX_MESSAGE],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
        }
