"""Conditions of a resource that an operator should see on the Node: when they begin, and when they end. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.framework.resource_server import ResourceServer

EventType = Literal["Normal", "Warning"]


class Occurrence(NamedTuple):
    """Something to write an Event of."""

    type: EventType
    reason: str
    """In CamelCase, for programs."""
    message: str


class Condition(NamedTuple):
    """A kind of condition."""

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


class Conditions:
    """The conditions of one resource."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._since: dict[Condition, float] = {}
        self._reported: set[Condition] = set()

    def observe(self, server: ResourceServer, now: float) -> Iterator[Occurrence]:
        """Yield what has begun or ended; ``now`` is a monotonic time in seconds."""
        registration = "" if server.registered else f"the kubelet has not registered the plugin: {server.unready}"
        yield from self._changed(UNREGISTERED, registration, now)
        if isinstance(server, DevicePlugin):
            confirmation = server.confirmation
            disagreement = (
                f"the kubelet has {confirmation.allocatable} of {confirmation.published} healthy devices"
                if confirmation.problem
                else ""
            )
            yield from self._changed(DISAGREEMENT, disagreement, now)
            # Of two plugins, the one that registered later reports both.
            yield from self._changed(SECOND_PLUGIN, "" if server.overridden else server.notice, now)

    def _changed(self, condition: Condition, problem: str, now: float) -> Iterator[Occurrence]:
        if problem:
            began = self._since.setdefault(condition, now)
            if now - began >= condition.seconds and condition not in self._reported:
                self._reported.add(condition)
                yield Occurrence("Warning", condition.reason, f"{self._resource}: {problem}")
            return
        self._since.pop(condition, None)
        if condition in self._reported:
            self._reported.discard(condition)
            yield Occurrence("Normal", condition.end_reason, condition.end_message.format(resource=self._resource))
