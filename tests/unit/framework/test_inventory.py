"""Snapshots of the devices, their encoding, the check of IDs, and the wait for the next snapshot."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.framework.api.deviceplugin_pb2 import ListAndWatchResponse
from aosp_plugin.framework.backend import Device, Found
from aosp_plugin.framework.inventory import MESSAGE_LIMIT, Inventory, Snapshot, valid_devices

DEVICES = st.builds(
    Device,
    id=st.text(alphabet="abü0", min_size=1, max_size=63),
    reason=st.sampled_from(["", "missing"]),
    numa_nodes=st.lists(st.integers(0, 300), max_size=3).map(tuple),
)


def lists(max_size: int) -> st.SearchStrategy[list[Device]]:
    """Return lists of devices with different IDs."""
    return st.lists(DEVICES, max_size=max_size, unique_by=lambda device: device.id)


def encode(devices: Sequence[Device], limit: int = MESSAGE_LIMIT) -> tuple[bytes, int]:
    """Return the message for a list, and the number of devices in it."""
    snapshot = Snapshot(1, devices, limit)
    return snapshot.message, len(devices) - snapshot.truncated


def decoded(message: bytes) -> list[tuple[str, str, tuple[int, ...]]]:
    """Decode a message as a kubelet does."""
    response = ListAndWatchResponse.FromString(message)
    return [(device.ID, device.health, tuple(node.ID for node in device.topology.nodes)) for device in response.devices]


def ids(*numbers: int) -> list[Device]:
    """Return healthy devices."""
    return [Device(f"b{number}") for number in numbers]


@given(lists(20))
@settings(derandomize=True, deadline=None)
def test_message_has_ids_health_and_topology_in_order(devices: list[Device]) -> None:
    """A device without a NUMA node has no topology."""
    message, count = encode(devices)
    assert count == len(devices)
    assert decoded(message) == [
        (device.id, "Unhealthy" if device.reason else "Healthy", device.numa_nodes) for device in devices
    ]
    topologies = [device.HasField("topology") for device in ListAndWatchResponse.FromString(message).devices]
    assert topologies == [bool(device.numa_nodes) for device in devices]


def test_message_limit_is_exact_to_the_byte() -> None:
    """An unhealthy device takes the length of its ID and 15 bytes, and 4 or 8 for NUMA nodes.

    Health does not change which devices fit. The message has the first devices, even if a later one would fit.
    """
    assert MESSAGE_LIMIT == 4_194_304
    for length, unhealthy, numa_nodes in ((12, 0, ()), (12, 50, (0,)), (63, 101, (0, 1))):
        limit = 100 * (length + 15 + 4 * len(numa_nodes))
        reasons = ["missing" if number < unhealthy else "" for number in range(101)]
        devices = [Device(f"{number:0{length}}", reason, numa_nodes) for number, reason in enumerate(reasons)]
        assert [encode([*devices, Device("a")], limit + byte)[1] for byte in (-1, 0, 1)] == [99, 100, 100]


@pytest.mark.parametrize(("unhealthy", "healthy"), [(2, 2), (4, 3)])
def test_snapshot_counts_devices_in_its_message(unhealthy: int, healthy: int) -> None:
    """The list that it was created from may change afterwards."""
    devices = [Device(f"b{number}", "missing" if number == unhealthy else "") for number in (1, 2, 3, 4)]
    snapshot = Snapshot(3, devices, limit=3 * 17)
    devices.clear()
    message = snapshot.message
    assert (snapshot.revision, snapshot.truncated, snapshot.healthy) == (3, 1, healthy)
    assert [device for device, _, _ in decoded(message)] == ["b1", "b2", "b3"]
    assert snapshot.message is message, "it is encoded once"
    assert [*snapshot.devices] == ["b1", "b2", "b3", "b4"]


def test_equal_list_is_not_published_again() -> None:
    """The first list is published even if it is empty."""
    inventory = Inventory()
    assert inventory.snapshot.revision == 0
    lists = (
        [],
        ids(1, 2),
        *([Device("b1", *why)] for why in (["missing"], ["replaced"], ["replaced", (0,)])),
    )
    for revision, devices in enumerate(lists, start=1):
        assert inventory.publish(Found(devices))
        snapshot = inventory.snapshot
        assert snapshot.revision == revision
        assert not inventory.publish(Found(tuple(devices)))
        assert inventory.snapshot is snapshot


def test_devices_are_published_again_without_a_change() -> None:
    """Unless they are unknown, because the first scan hangs: the kubelet would drop those that it has."""
    inventory = Inventory()
    inventory.republish()
    assert inventory.snapshot.revision == 0
    inventory.publish(Found(ids(1, 2)))
    waiting = inventory.superseded(1)
    inventory.republish()
    assert waiting.is_set()
    assert (inventory.snapshot.revision, [*inventory.snapshot.devices.values()]) == (2, ids(1, 2))


async def test_current_readers_wait_for_the_next_revision() -> None:
    """Outdated ones do not wait."""
    inventory = Inventory()
    inventory.publish(Found(ids(1)))
    waiting = inventory.superseded(1)
    inventory.publish(Found(ids(1)))
    assert not waiting.is_set()
    inventory.publish(Found(ids(1, 2)))
    assert waiting.is_set()
    assert [inventory.superseded(revision).is_set() for revision in (0, 1, 2, 9)] == [True, True, False, False]


def test_device_with_an_invalid_id_is_skipped() -> None:
    devices = [Device("x" * 63), Device("ü a,/:")]
    assert valid_devices(devices) == ({device.id: device for device in devices}, {})
    for device_id, problem in (
        ("", "the ID is empty"),
        ("x" * 64, "the ID has 64 characters; the limit is 63"),
        ("a\nb", "the ID has characters that are not printable"),
        ("caf\udce9", "the ID has characters that are not printable"),
        ("b1", "another device has the same ID"),
    ):
        found, problems = valid_devices([*ids(1), Device(device_id, "second"), *ids(2)])
        assert [*found.values()] == ids(1, 2)
        assert problems == {device_id: problem}


def test_a_change_counts_from_its_first_event_until_a_stream_has_sent_it() -> None:
    inventory = Inventory()
    for number, since in enumerate((None, 99.0, 100.0, None)):
        inventory.publish(Found([Device(f"a{number}")]), since)
    assert inventory.changed_since == 99.0
