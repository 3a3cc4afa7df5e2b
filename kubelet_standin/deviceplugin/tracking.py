"""Selects the current one of several plugins of a resource, and defines the effect of a plugin's end. No I/O.

Each tracker mirrors a generation of pkg/kubelet/cm/devicemanager; the generations differ most in this respect.
``current`` is the manager's map of endpoints, which Allocate and the other calls use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Plugin(Protocol):
    """The attributes of an endpoint that trackers use."""

    resource: str
    path: str


P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True)
class EndEffect(Generic[P]):
    """The effect of the end of a plugin's last stream."""

    close: P | None = None
    """The plugin whose connection is closed."""
    lost: bool = False
    """Whether the resource's devices become unhealthy and its current endpoint is stopped."""


class Tracker(Generic[P]):
    """1.37: clients are stored by resource name and socket path; devices are lost with the last client."""

    def __init__(self) -> None:
        self.current: dict[str, P] = {}
        self._connected: dict[str, dict[str, P]] = {}

    def on_dial(self, plugin: P) -> None:
        """Record that a plugin is about to be dialled."""

    def refusal(self, plugin: P) -> str | None:
        """Return the reason to refuse a dialled plugin: a second one at the same path (PluginConnected), or None."""
        if plugin.path in self._connected.get(plugin.resource, {}):
            return f"device plugin already connected: {plugin.path}"
        return None

    def on_failed(self, plugin: P) -> None:
        """Record that a plugin could not be dialled or was refused."""

    def on_connected(self, plugin: P) -> None:
        """Make a plugin the current one of its resource; plugins at other paths stay connected."""
        self.current[plugin.resource] = plugin
        self._connected.setdefault(plugin.resource, {})[plugin.path] = plugin

    def on_end(self, plugin: P) -> EndEffect[P]:
        """Record the end of a plugin's last stream: close it, and make the most recent remaining one current."""
        remaining = self._connected[plugin.resource]
        del remaining[plugin.path]
        if self.current.get(plugin.resource) is plugin and remaining:
            self.current[plugin.resource] = list(remaining.values())[-1]
        return EndEffect(close=plugin, lost=not remaining and plugin.resource in self.current)


class TrackerByName(Tracker[P]):
    """Up to 1.36: clients are stored by resource name only (plugin/v1beta1/handler.go, runClient)."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: dict[str, P] = {}

    def on_dial(self, plugin: P) -> None:
        """Overwrite the resource's client, although dialling may still fail."""
        self._clients[plugin.resource] = plugin

    def refusal(self, plugin: P) -> None:
        """Refuse no plugin."""

    def on_failed(self, plugin: P) -> None:
        """Remove the resource's client."""
        self._clients.pop(plugin.resource, None)

    def on_connected(self, plugin: P) -> None:
        """Make a plugin the current one of its resource."""
        self.current[plugin.resource] = plugin

    def on_end(self, plugin: P) -> EndEffect[P]:
        """Disconnect the resource's client, even if it is another plugin: this is the bug."""
        client = self._clients.pop(plugin.resource, None)
        return EndEffect() if client is None else EndEffect(close=client, lost=plugin.resource in self.current)
