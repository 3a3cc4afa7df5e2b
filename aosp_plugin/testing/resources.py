"""The kubelet's books: which devices there are, and who has which. No I/O.

pkg/kubelet/cm/devicemanager/manager.go: healthyDevices, unhealthyDevices, allocatedDevices and podDevices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aosp_plugin.testing.checkpoint import Checkpoint, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from aosp_plugin.framework.api import deviceplugin_pb2 as pb

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


@dataclass(frozen=True)
class ResourceView:
    """One resource as the kubelet sees it at this moment."""

    name: str
    known: bool
    """Whether the node's status has the resource; False: capacity 0, as for one that never was."""
    capacity: int
    """All devices, used and unhealthy ones too."""
    allocatable: int
    """The healthy devices, used ones too."""
    devices: Mapping[str, str]
    """Id to health, in the order of the last message; all Unhealthy once the plugin is lost."""
    connected: bool
    """Whether there is a plugin, and it is not stopped."""
    streams: int
    """ListAndWatch streams that are open, those of replaced plugins too."""
    streams_opened: int
    """ListAndWatch calls since the kubelet's start."""
    messages: int
    """ListAndWatch messages since the kubelet's start."""
    last_message_size: int
    """Bytes of the last message on the wire."""
    last_message_at: float | None
    """When it came, by the kubelet's clock."""
    last_stream_end: str | None
    """Why a stream ended last, in grpc-go's words; "EOF": the plugin returned."""


@dataclass
class Listing:
    """What plugins told of one resource."""

    devices: dict[str, str] = field(default_factory=dict)
    healthy: AbstractSet[str] = frozenset()
    unhealthy: AbstractSet[str] = frozenset()
    topology: dict[str, tuple[int, ...]] = field(default_factory=dict)
    listed: bool = False
    """Whether the kubelet has an entry for it, be it empty: from the first message, or the first loss, on."""
    messages: int = 0
    last_message_size: int = 0
    last_message_at: float | None = None
    streams_opened: int = 0
    last_stream_end: str | None = None

    def replace(self, message: pb.ListAndWatchResponse, size: int, now: float) -> None:
        """Take a message: it replaces the whole list.

        An id that comes twice counts once; with both healths, it counts in both sets (manager.go
        ``genericDeviceUpdateCallback``): it can be allocated, and is two of the capacity.
        """
        self.devices = {device.ID: device.health for device in message.devices}
        self.healthy = {device.ID for device in message.devices if device.health == HEALTHY}
        self.unhealthy = {device.ID for device in message.devices if device.health != HEALTHY}
        self.topology = {
            device.ID: tuple(node.ID for node in device.topology.nodes)
            for device in message.devices
            if device.HasField("topology")
        }
        self.listed = True
        self.messages += 1
        self.last_message_size = size
        self.last_message_at = now

    def lose(self) -> None:
        """Mark all devices unhealthy: the plugin is gone (markResourceUnhealthy)."""
        self.devices = dict.fromkeys(self.devices, UNHEALTHY)
        self.healthy, self.unhealthy = frozenset(), frozenset(self.devices)
        self.listed = True

    def forget(self) -> None:
        """Drop the list; what was counted stays counted."""
        self.devices, self.topology, self.listed = {}, {}, False
        self.healthy = self.unhealthy = frozenset()

    @property
    def capacity(self) -> int:
        """What the node's status counts: both sets, by their sizes."""
        return len(self.healthy) + len(self.unhealthy)


class Books:
    """Everything that the device manager remembers, and what of it goes into the checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.listings: dict[str, Listing] = {name: Listing(listed=True) for name in checkpoint.registered}
        self.entries: dict[tuple[str, str, str], Entry] = {
            (entry.pod_uid, entry.container, entry.resource): entry for entry in checkpoint.entries
        }
        self.in_use: dict[str, set[str]] = {}
        self.recount()

    def listing(self, resource: str) -> Listing:
        """Return the listing of a resource, a new one if need be."""
        return self.listings.setdefault(resource, Listing())

    def listed(self) -> Iterator[str]:
        """Iterate over the resources that the node's status has."""
        return (name for name, listing in self.listings.items() if listing.listed)

    def healthy(self, resource: str) -> AbstractSet[str] | None:
        """Return the healthy ids, or None for a resource that is not listed."""
        listing = self.listings.get(resource)
        return listing.healthy if listing is not None and listing.listed else None

    def is_plugin_resource(self, resource: str) -> bool:
        """Whether Allocate cares about it (isDevicePluginResource)."""
        return self.healthy(resource) is not None or resource in self.in_use

    def held(self, pod_uid: str, container: str, resource: str) -> tuple[str, ...] | None:
        """Return what a container was given of a resource, or None."""
        entry = self.entries.get((pod_uid, container, resource))
        return None if entry is None else entry.device_ids

    def of_container(self, pod_uid: str, container: str) -> list[Entry]:
        """Return what a container was given, of every resource."""
        return [entry for entry in self.entries.values() if (entry.pod_uid, entry.container) == (pod_uid, container)]

    def use(self, resource: str, ids: tuple[str, ...]) -> None:
        """Note devices as used, before the plugin is asked."""
        self.in_use.setdefault(resource, set()).update(ids)

    def insert(self, entry: Entry) -> None:
        """Note what a container got, once the plugin has answered."""
        self.entries[entry.pod_uid, entry.container, entry.resource] = entry

    def recount(self) -> None:
        """Derive the used devices from what containers hold; picks that came to nothing are free again."""
        self.in_use = {}
        for entry in self.entries.values():
            self.use(entry.resource, entry.device_ids)

    def release(self, is_active: Callable[[str], bool]) -> None:
        """Drop pods that are not active (UpdateAllocatedDevices); if there is none, change nothing."""
        gone = [key for key in self.entries if not is_active(key[0])]
        for key in gone:
            del self.entries[key]
        if gone:
            self.recount()

    def checkpoint(self) -> Checkpoint:
        """Return what has to survive the kubelet: allocations, and the healthy ids of each resource."""
        return Checkpoint(
            entries=tuple(self.entries.values()),
            registered={name: sorted(self.listings[name].healthy) for name in self.listed()},
        )
