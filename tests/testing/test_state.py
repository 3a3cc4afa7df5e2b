"""The device manager's state: the devices that plugins reported, and their allocation."""

from __future__ import annotations

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.testing.checkpoint import Checkpoint, CheckpointEntry
from aosp_plugin.testing.resources import ManagerState, ResourceState


def message(**devices: str) -> pb.ListAndWatchResponse:
    return pb.ListAndWatchResponse(devices=[pb.Device(ID=name, health=health) for name, health in devices.items()])


def entry(pod: str, container: str, resource: str, *ids: str) -> CheckpointEntry:
    return CheckpointEntry(pod, container, resource, {-1: ids}, b"")


def test_message_replaces_the_device_list() -> None:
    """The order of the devices is that of the message."""
    resource = ResourceState()
    resource.replace(message(z="Healthy", a="Unhealthy"), 10, 1.0)
    assert list(resource.devices.items()) == [("z", "Healthy"), ("a", "Unhealthy")]
    assert resource.healthy == {"z"}
    resource.replace(message(b="Healthy"), 5, 2.0)
    assert resource.devices == {"b": "Healthy"}
    assert (resource.messages, resource.last_message_size, resource.last_message_at) == (2, 5, 2.0)


def test_duplicate_id_counts_once_for_each_health() -> None:
    """An ID with both healths can be allocated, and counts twice in the capacity until the plugin is lost."""
    resource = ResourceState()
    resource.replace(pb.ListAndWatchResponse(devices=[pb.Device(ID="a", health="Healthy")] * 2), 0, 0)
    assert (resource.capacity, resource.healthy) == (1, {"a"})
    both = [pb.Device(ID="a", health="Healthy"), pb.Device(ID="a", health="Unhealthy")]
    resource.replace(pb.ListAndWatchResponse(devices=both), 0, 0)
    assert (resource.capacity, resource.healthy, resource.unhealthy) == (2, {"a"}, {"a"})
    resource.lose()
    assert (resource.capacity, resource.healthy) == (1, frozenset())


def test_health_other_than_healthy_is_unhealthy() -> None:
    resource = ResourceState()
    resource.replace(message(a="healthy", b="", c="Healthy", d="Sick"), 0, 0)
    assert resource.healthy == {"c"}


def test_topology_is_stored_if_present() -> None:
    resource = ResourceState()
    nodes = pb.TopologyInfo(nodes=[pb.NUMANode(ID=0), pb.NUMANode(ID=1)])
    devices = [pb.Device(ID="a"), pb.Device(ID="b", topology=pb.TopologyInfo()), pb.Device(ID="c", topology=nodes)]
    resource.replace(pb.ListAndWatchResponse(devices=devices), 0, 0)
    assert resource.topology == {"b": (), "c": (0, 1)}


def test_resource_without_devices_is_listed() -> None:
    state = ManagerState(Checkpoint())
    state.resource("r/r").replace(message(), 0, 0)
    assert list(state.listed()) == ["r/r"]
    assert state.healthy("r/r") == set()


def test_lost_resource_is_unhealthy_and_a_forgotten_one_is_absent() -> None:
    """The counters survive both."""
    state = ManagerState(Checkpoint())
    resource = state.resource("r/r")
    resource.replace(message(a="Healthy", b="Odd"), 7, 0)
    resource.lose()
    assert resource.devices == {"a": "Unhealthy", "b": "Unhealthy"}
    assert state.healthy("r/r") == set()
    resource.forget()
    assert resource.devices == {}
    assert state.healthy("r/r") is None
    assert resource.messages == 1


def test_resource_belongs_to_a_plugin_while_it_is_listed_or_in_use() -> None:
    """A registered plugin has no resource before its first message or loss."""
    state = ManagerState(Checkpoint(entries=[entry("u", "c", "r/used", "a")]))
    assert not state.is_plugin_resource("r/r")
    resource = state.resource("r/r")
    assert not state.is_plugin_resource("r/r")
    resource.lose()
    assert state.is_plugin_resource("r/r")
    assert state.healthy("r/used") is None
    assert state.is_plugin_resource("r/used")


def test_state_is_restored_from_a_checkpoint() -> None:
    """The allocations are restored; the resources are known, but have no devices yet."""
    state = ManagerState(Checkpoint([entry("u", "c", "r/1", "a", "b")], {"r/1": ["a", "b", "x"], "r/2": []}))
    assert state.in_use == {"r/1": {"a", "b"}}
    assert state.held("u", "c", "r/1") == ("a", "b")
    assert state.held("u", "c", "r/2") is None
    assert list(state.listed()) == ["r/1", "r/2"]
    assert state.healthy("r/1") == set()


def test_allocations_of_a_container_exclude_other_containers_and_pods() -> None:
    allocation = entry("u", "c", "r/1", "a")
    state = ManagerState(Checkpoint([allocation, entry("u", "other", "r/1", "b"), entry("v", "c", "r/1", "x")]))
    assert state.of_container("u", "c") == [allocation]


def test_release_frees_the_devices_of_inactive_pods() -> None:
    """Devices of failed allocations become free as well, but only if a pod was removed."""
    state = ManagerState(Checkpoint([entry("u", "c", "r/r", "a"), entry("v", "c", "r/r", "b")]))
    state.use("r/r", ("failed",))
    state.release({"u", "v"}.__contains__)
    assert state.in_use == {"r/r": {"a", "b", "failed"}}
    state.release({"u"}.__contains__)
    assert state.in_use == {"r/r": {"a"}}
    assert state.held("v", "c", "r/r") is None


def test_checkpoint_has_allocations_and_healthy_ids() -> None:
    """It excludes unhealthy IDs, and resources that are not listed."""
    state = ManagerState(Checkpoint())
    state.resource("r/r").replace(message(b="Healthy", a="Healthy", c="Unhealthy"), 0, 0)
    state.resource("r/silent")
    allocation = entry("u", "c", "r/r", "a")
    state.insert(allocation)
    assert state.checkpoint() == Checkpoint((allocation,), {"r/r": ["a", "b"]})
