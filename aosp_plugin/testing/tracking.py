"""Which of several plugins of one resource counts, and what the end of one does. No I/O.

Each tracker mirrors one generation of pkg/kubelet/cm/devicemanager, which differ most here. ``current`` is
the manager's map of endpoints, which Allocate and the others use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from aosp_plugin.testing.behaviour import Behaviour


class Plugin(Protocol):
    """What the trackers need of an endpoint."""

    resource: str
    path: str


P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True)
class End(Generic[P]):
    """What follows from the end of a plugin's streams."""

    close: P | None = None
    """The plugin whose connection is closed."""
    lost: bool = False
    """Whether the resource's devices turn unhealthy, and its current endpoint counts as stopped."""


class Tracker(Protocol[P]):
    """Keeps track of the plugins of all resources."""

    current: dict[str, P]

    def dialling(self, plugin: P) -> None:
        """Note that a plugin is about to be dialled."""

    def objection(self, plugin: P) -> str | None:
        """Return why a dialled plugin is not taken, or None."""

    def failed(self, plugin: P) -> None:
        """Note that a plugin could not be dialled or was not taken."""

    def connected(self, plugin: P) -> None:
        """Make a plugin the one that counts."""

    def ended(self, plugin: P) -> End[P]:
        """Say what the end of a plugin's streams leads to."""


class OldTracker(Generic[P]):
    """1.20: the last one counts; those before it go on, and their end means nothing (manager.go:472)."""

    def __init__(self) -> None:
        self.current: dict[str, P] = {}

    def dialling(self, plugin: P) -> None:
        """Nothing is noted before the plugin has answered."""

    def objection(self, plugin: P) -> str | None:  # noqa: ARG002 - the protocol's signature
        """Any plugin is taken."""
        return None

    def failed(self, plugin: P) -> None:
        """Nothing was noted."""

    def connected(self, plugin: P) -> None:
        """Replace the one before, which is not stopped."""
        self.current[plugin.resource] = plugin

    def ended(self, plugin: P) -> End[P]:
        """Close it; the devices are lost only if no other one has taken over."""
        return End(close=plugin, lost=self.current.get(plugin.resource) is plugin)


class BuggyTracker(OldTracker[P]):
    """1.25 to 1.36: clients by resource name alone (plugin/v1beta1/handler.go, runClient)."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: dict[str, P] = {}

    def dialling(self, plugin: P) -> None:
        """Overwrite the client of that name, even though the new one may fail."""
        self._clients[plugin.resource] = plugin

    def failed(self, plugin: P) -> None:
        """Forget the client of that name."""
        self._clients.pop(plugin.resource, None)

    def ended(self, plugin: P) -> End[P]:
        """Disconnect the client of that name, whichever it is: the bug."""
        client = self._clients.pop(plugin.resource, None)
        return End() if client is None else End(close=client, lost=plugin.resource in self.current)


class NewTracker(Generic[P]):
    """1.37: clients by resource name and socket path; only the last one's end loses the devices."""

    def __init__(self) -> None:
        self.current: dict[str, P] = {}
        self._connected: dict[str, dict[str, P]] = {}

    def dialling(self, plugin: P) -> None:
        """Nothing is noted before the plugin has answered."""

    def objection(self, plugin: P) -> str | None:
        """Refuse a second plugin of the same resource at the same path (PluginConnected in manager.go)."""
        if plugin.path in self._connected.get(plugin.resource, {}):
            return f"device plugin already connected: {plugin.path}"
        return None

    def failed(self, plugin: P) -> None:
        """Nothing was noted."""

    def connected(self, plugin: P) -> None:
        """Let the new one count; those at other paths go on beside it."""
        self._connected.setdefault(plugin.resource, {})[plugin.path] = plugin
        self.current[plugin.resource] = plugin

    def ended(self, plugin: P) -> End[P]:
        """Close it and promote the youngest survivor, if there is one."""
        others = self._connected[plugin.resource]
        del others[plugin.path]
        if self.current.get(plugin.resource) is plugin and others:
            self.current[plugin.resource] = list(others.values())[-1]
        return End(close=plugin, lost=not others)


def tracker_for(behaviour: Behaviour) -> Tracker[P]:
    """Return a fresh tracker of this behaviour."""
    if behaviour is Behaviour.OLD:
        return OldTracker[P]()
    return BuggyTracker[P]() if behaviour is Behaviour.BUGGY else NewTracker[P]()
