"""What happens to a resource that an operator should see on the Node: lost devices and registrations. No I/O."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aosp_plugin.framework.inventory import Snapshot
    from aosp_plugin.framework.resource_server import ResourceServer

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
