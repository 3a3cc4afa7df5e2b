"""The device manager's state: devices of each resource, and their allocation to containers. No I/O.

pkg/kubelet/cm/devicemanager/manager.go: healthyDevices, unhealthyDevices, allocatedDevices and podDevices.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.deviceplugin.checkpoint import Checkpoint, CheckpointEntry

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


@dataclass(frozen=True)
class ResourceView:
    """The kubelet's current view of one resource."""

    name: str
    known: bool
    """Whether the node status has the resource. If not, its capacity is 0, as for one that never existed."""
    capacity: int
    """The number of all devices, including those in use and unhealthy ones."""
    allocatable: int
    """The number of healthy devices, including those in use."""
    devices: Mapping[str, str]
    """ID to health, in the order of the last message; all are Unhealthy after the plugin was lost."""
    connected: bool
    """Whether there is a plugin that is not stopped."""
    pre_start_required: bool
    """Whether the plugin is called before a container starts; not before it has registered, after a restart."""
    streams: int
    """The number of open ListAndWatch streams, including those of replaced plugins."""
    streams_opened: int
    """The number of ListAndWatch calls since the kubelet's start."""
    messages: int
    """The number of ListAndWatch messages since the kubelet's start."""
    last_message_size: int
    """The size of the last message on the wire, in bytes."""
    last_stream_end: str | None
    """The reason of the last stream end, in grpc-go's words; "EOF" means that the plugin returned."""


@dataclass
class ResourceState:
    """The devices that plugins reported for one resource."""

    devices: dict[str, str] = field(default_factory=dict)
    healthy: AbstractSet[str] = frozenset()
    unhealthy: AbstractSet[str] = frozenset()
    topology: dict[str, tuple[int, ...]] = field(default_factory=dict)
    listed: bool = False
    """Whether the kubelet has an entry for the resource, even an empty one: since the first message or loss."""
    messages: int = 0
    last_message_size: int = 0
    streams_opened: int = 0
    last_stream_end: str | None = None

    def replace(self, message: pb.ListAndWatchResponse, size: int) -> None:
        """Replace the device list by that of a message.

        An ID that occurs twice counts once; with both healths, it counts in both sets (manager.go
        ``genericDeviceUpdateCallback``): it can be allocated, and counts twice in the capacity.
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

    def lose(self) -> None:
        """Mark all devices unhealthy, because the plugin is lost (markResourceUnhealthy)."""
        self.devices = dict.fromkeys(self.devices, UNHEALTHY)
        self.healthy, self.unhealthy = frozenset(), frozenset(self.devices)
        self.listed = True

    def forget(self) -> None:
        """Drop the device list; the counters keep their values."""
        self.devices, self.topology, self.listed = {}, {}, False
        self.healthy = self.unhealthy = frozenset()

    @property
    def capacity(self) -> int:
        """The capacity in the node status: the sum of both sets' sizes."""
        return len(self.healthy) + len(self.unhealthy)


class ManagerState:
    """The device manager's state in memory, restored from and saved to a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.resources: dict[str, ResourceState] = {name: ResourceState(listed=True) for name in checkpoint.registered}
        self.entries: dict[tuple[str, str, str], CheckpointEntry] = {
            (entry.pod_uid, entry.container, entry.resource): entry for entry in checkpoint.entries
        }
        self.in_use: dict[str, set[str]] = {}
        self.recount()

    def resource(self, name: str) -> ResourceState:
        """Return the state of a resource; it is created if it does not exist."""
        return self.resources.setdefault(name, ResourceState())

    def listed(self) -> Iterator[str]:
        """Iterate over the names of the resources in the node status."""
        return (name for name, resource in self.resources.items() if resource.listed)

    def healthy(self, name: str) -> AbstractSet[str] | None:
        """Return the healthy IDs, or None for a resource that is not listed."""
        resource = self.resources.get(name)
        return resource.healthy if resource is not None and resource.listed else None

    def is_plugin_resource(self, name: str) -> bool:
        """Whether Allocate handles the resource (isDevicePluginResource)."""
        return self.healthy(name) is not None or name in self.in_use

    def held(self, pod_uid: str, container: str, resource: str) -> tuple[str, ...] | None:
        """Return the IDs of a resource that a container has, or None."""
        entry = self.entries.get((pod_uid, container, resource))
        return None if entry is None else entry.device_ids

    def of_container(self, pod_uid: str, container: str) -> list[CheckpointEntry]:
        """Return the allocations of a container."""
        return [entry for entry in self.entries.values() if (entry.pod_uid, entry.container) == (pod_uid, container)]

    def use(self, resource: str, ids: tuple[str, ...]) -> None:
        """Mark devices as in use, before the plugin is called."""
        self.in_use.setdefault(resource, set()).update(ids)

    def insert(self, entry: CheckpointEntry) -> None:
        """Store an allocation, after the plugin has answered."""
        self.entries[entry.pod_uid, entry.container, entry.resource] = entry

    def recount(self) -> None:
        """Derive the devices in use from the allocations; devices of failed allocations become free."""
        self.in_use = {}
        for entry in self.entries.values():
            self.use(entry.resource, entry.device_ids)

    def release(self, is_active: Callable[[str], bool]) -> bool:
        """Remove the allocations of inactive pods (UpdateAllocatedDevices), and return whether there were any."""
        inactive = [key for key in self.entries if not is_active(key[0])]
        for key in inactive:
            del self.entries[key]
        if inactive:
            self.recount()
        return bool(inactive)

    def checkpoint(self) -> Checkpoint:
        """Return the allocations and the healthy IDs of each resource."""
        return Checkpoint(
            entries=tuple(self.entries.values()),
            registered={name: sorted(self.resources[name].healthy) for name in self.listed()},
        )
