"""The devices at one moment, the message that tells them, and those who wait for the next one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.framework.api.deviceplugin_pb2 import ListAndWatchResponse
from aosp_plugin.framework.deviceplugin.encoding import CHUNK, chunks, fitting
from aosp_plugin.framework.inventory import MESSAGE_LIMIT, Device, Inventory, Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICES = st.builds(
    Device,
    id=st.text(alphabet="abü0", min_size=1, max_size=63),
    reason=st.sampled_from(["", "missing"]),
    numa_nodes=st.lists(st.integers(0, 300), max_size=3).map(tuple),
)


def encode(devices: Sequence[Device], limit: int = MESSAGE_LIMIT) -> tuple[bytes, int]:
    """Return the message of a first list, and how many devices it tells."""
    return fitting(chunks(tuple(devices)), limit)


def decoded(message: bytes) -> list[tuple[str, str, tuple[int, ...]]]:
    """Read a message as a kubelet does."""
    response = ListAndWatchResponse.FromString(message)
    return [(device.ID, device.health, tuple(node.ID for node in device.topology.nodes)) for device in response.devices]


def ids(*numbers: int) -> list[Device]:
    """Return healthy devices."""
    return [Device(f"b{number}") for number in numbers]


def test_a_device_is_healthy_unless_there_is_a_reason() -> None:
    """The reason is all that is known of its health."""
    assert Device("a").healthy
    assert not Device("a", "missing").healthy


def test_a_message_says_what_the_devices_are() -> None:
    """IDs, health and topology arrive in order; without NUMA nodes there is no topology."""
    devices = [Device("b"), Device("a", "missing"), Device("c", numa_nodes=(0, 1))]
    message, count = encode(devices)
    assert count == 3
    assert decoded(message) == [("b", "Healthy", ()), ("a", "Unhealthy", ()), ("c", "Healthy", (0, 1))]
    response = ListAndWatchResponse.FromString(message)
    assert [device.HasField("topology") for device in response.devices] == [False, False, True]


def test_no_devices_are_an_empty_message() -> None:
    """Which tells a kubelet that there are none."""
    assert encode([]) == (b"", 0)


@given(st.lists(DEVICES, max_size=20))
@settings(derandomize=True, deadline=None)
def test_any_devices_survive_the_message(devices: list[Device]) -> None:
    """Whatever is told comes out as it went in."""
    message, count = encode(devices)
    assert count == len(devices)
    assert decoded(message) == [
        (device.id, "Healthy" if device.healthy else "Unhealthy", device.numa_nodes) for device in devices
    ]


@pytest.mark.parametrize(
    ("numa_nodes", "fit"),
    [((), 131_072), ((0,), 116_508), ((1,), 110_376), ((0, 1), 104_857)],
)
def test_as_many_devices_are_told_as_fit_when_all_are_unhealthy(numa_nodes: tuple[int, ...], fit: int) -> None:
    """Those that fit into 4 MiB in the worst case, and not one more."""
    healthy = [Device(f"aosp_binder{number}", numa_nodes=numa_nodes) for number in range(100_000, 100_001 + fit)]
    message, count = encode(healthy)
    assert count == fit
    assert len(message) <= MESSAGE_LIMIT == 4_194_304
    one_unhealthy, _ = encode([Device("aosp_binder100000", "missing", numa_nodes)])
    assert fit == MESSAGE_LIMIT // len(one_unhealthy)


@pytest.mark.parametrize("length", [12, 63])
def test_longer_names_leave_room_for_fewer(length: int) -> None:
    """Each device costs its ID and 15 bytes when it is unhealthy, so the limit is exact to the byte."""
    limit = 100 * (length + 15)
    devices = [Device(f"{number:0{length}}") for number in range(110)]
    assert encode(devices, limit)[1] == 100
    assert encode(devices, limit - 1)[1] == 99
    assert encode(devices, limit + 1)[1] == 100


def test_health_does_not_change_which_devices_fit() -> None:
    """A device that turns ill must not push another out of the list."""
    limit = 10 * 20
    for ill in range(12):
        devices = [Device(f"{n:05}", "missing" if n < ill else "") for n in range(12)]
        assert encode(devices, limit)[1] == 10


def test_the_last_devices_are_left_out_even_where_a_shorter_one_would_fit() -> None:
    """What is told is a beginning of the order, so that it does not depend on lengths."""
    devices = [Device("a"), Device("b" * 60), Device("c")]
    assert encode(devices, 40)[1] == 1


def test_a_snapshot_counts_what_it_tells() -> None:
    """Devices that are left out are known by ID, and not among the healthy ones."""
    snapshot = Snapshot(3, [*ids(1), Device("b2", "missing"), *ids(3, 4)], limit=3 * 17)
    assert snapshot.revision == 3
    assert snapshot.truncated == 1
    assert snapshot.healthy == 2
    assert Snapshot(3, [*ids(1, 2, 3), Device("b4", "missing")], limit=3 * 17).healthy == 3
    assert [device for device, _, _ in decoded(snapshot.message)] == ["b1", "b2", "b3"]
    assert list(snapshot.by_id) == ["b1", "b2", "b3", "b4"]
    assert snapshot.by_id["b2"].reason == "missing"


def test_a_snapshot_that_fits_leaves_nothing_out() -> None:
    """The limit is the kubelet's unless another one is given."""
    snapshot = Snapshot(1, ids(*range(100)))
    assert (snapshot.truncated, snapshot.healthy) == (0, 100)


def test_a_snapshot_keeps_its_devices_and_its_message() -> None:
    """The list that it was made of may change afterwards, and the message is built once."""
    devices = ids(1, 2)
    snapshot = Snapshot(1, devices)
    message = snapshot.message
    devices.append(Device("b3"))
    assert snapshot.devices == tuple(ids(1, 2))
    assert snapshot.message is message
    assert snapshot.by_id is snapshot.by_id


@given(
    before=st.lists(DEVICES, max_size=12),
    after=st.lists(DEVICES, max_size=12),
    kept=st.tuples(st.integers(0, 4 * CHUNK), st.integers(0, 4 * CHUNK)),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_what_is_the_same_is_told_the_same(before: list[Device], after: list[Device], kept: tuple[int, int]) -> None:
    """Whatever changed between devices that stayed, the message is that of a list nobody has told of before."""
    front, back = ids(*range(kept[0])), ids(*range(10_000, 10_000 + kept[1]))
    first = Snapshot(1, [*front, *before, *back])
    second = Snapshot(2, [*front, *after, *back], before=first)
    assert second.message == Snapshot(2, [*front, *after, *back]).message
    assert second.truncated == 0


def test_a_change_leaves_the_rest_as_it_was_encoded() -> None:
    """One device of many that turns ill, goes or comes has no more encoded than what is next to it."""
    many = ids(*range(10 * CHUNK))
    before = chunks(tuple(many))
    place = 5 * CHUNK + 3
    ill = [*many[:place], Device(many[place].id, "missing"), *many[place + 1 :]]
    for after in (ill, many[:place] + many[place + 1 :], [*many[:place], Device("new"), *many[place:]], many[1:]):
        shared = {id(chunk) for chunk in before} & {id(chunk) for chunk in chunks(tuple(after), before)}
        assert len(shared) == 9


def test_chunks_stay_few_however_often_a_list_changes() -> None:
    """A list that grows and shrinks anywhere, one by one, is not one of many small pieces in the end."""
    rng = random.Random(1)  # noqa: S311 - places
    many = ids(*range(3 * CHUNK))
    kept = chunks(tuple(many))
    for number in range(4 * CHUNK):
        many.insert(rng.randrange(len(many)), Device(f"new{number}"))
        kept = chunks(tuple(many), kept)
        assert max(len(chunk.devices) for chunk in kept) <= CHUNK
    assert len(kept) <= 7 * 4
    while len(many) > CHUNK:
        del many[rng.randrange(len(many))]
        kept = chunks(tuple(many), kept)
    assert len(kept) <= 8


def test_the_first_list_is_a_revision_even_if_it_is_empty() -> None:
    """A kubelet that is told of no device yet must be told that there is none."""
    inventory = Inventory()
    assert inventory.snapshot.revision == 0
    assert inventory.publish([])
    assert inventory.snapshot.revision == 1
    assert not inventory.publish([])


def test_an_equal_list_is_no_new_revision() -> None:
    """Nothing is sent where nothing changed; order, health, reason and topology are changes."""
    inventory = Inventory()
    assert inventory.publish(ids(1, 2))
    snapshot = inventory.snapshot
    assert not inventory.publish(tuple(ids(1, 2)))
    assert inventory.snapshot is snapshot
    for revision, changed in enumerate(
        ([*ids(2, 1)], [Device("b1", "missing")], [Device("b1", "replaced")], [Device("b1", "replaced", (0,))]), start=2
    ):
        assert inventory.publish(changed)
        assert inventory.snapshot.revision == revision


async def test_whoever_is_up_to_date_waits_for_the_next_revision() -> None:
    """The event is set by the next list that differs, and not by an equal one."""
    inventory = Inventory()
    inventory.publish(ids(1))
    newer = inventory.superseded(1)
    assert not newer.is_set()
    inventory.publish(ids(1))
    assert not newer.is_set()
    inventory.publish(ids(1, 2))
    assert newer.is_set()
    assert not inventory.superseded(2).is_set()


async def test_whoever_is_behind_does_not_wait() -> None:
    """However often it asks: no other stream can take the news away."""
    inventory = Inventory()
    inventory.publish(ids(1))
    inventory.publish(ids(2))
    for _ in range(2):
        assert inventory.superseded(0).is_set()
        assert inventory.superseded(1).is_set()
    assert not inventory.superseded(2).is_set()
    assert not inventory.superseded(9).is_set()


async def test_all_who_wait_are_told() -> None:
    """Several streams may be open, and one that waited before the first list is told of it."""
    inventory = Inventory()
    waiting = [inventory.superseded(0), inventory.superseded(0)]
    inventory.publish([])
    assert [event.is_set() for event in waiting] == [True, True]
