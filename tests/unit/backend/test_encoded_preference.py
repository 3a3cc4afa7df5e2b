"""GetPreferredAllocation from the bytes of a request: the same choice as from all free devices, after a few of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices import numa
from aosp_plugin.binder.devices.preference import prefer, spread
from aosp_plugin.binder.devices.sets import replica_ids
from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.deviceplugin.preference_request import AvailableIds, PreferenceRequest, decode
from aosp_plugin.framework.errors import InvalidRequestError

NUMA_NODES: list[tuple[int, ...]] = [(), (0,), (1,), (0, 1)]
PREFIXES = ["b", "aosp_binder", "phone-0", "x" * 9, "x" * 8, "0" * 46, "0" * 9, "€" * 60, "binder/", "ü1-", "1"]
"""Among their IDs are some of 10 bytes, whose length is encoded like the tag of a free device, of 48, whose length is
encoded like the character 0, and of more than 127, whose length has two bytes."""
IDS = st.tuples(st.sampled_from(PREFIXES), st.integers(0, 300).map(str) | st.just("")).map("".join)
SIZES = st.integers(-1, 30)


def request(available: list[str], must_include: list[str], size: int) -> PreferenceRequest:
    """Return a kubelet's request for one container as the plugin decodes it."""
    container = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
    )
    (decoded,) = decode(pb.PreferredAllocationRequest(container_requests=[container]).SerializeToString())
    return decoded


def reference(
    order: list[str], available: list[str], must_include: list[str], size: int, numa_nodes: dict[str, tuple[int, ...]]
) -> list[str]:
    """Return what ``prefer`` chooses, from a mask of all devices."""
    chosen = list(dict.fromkeys(must_include))
    missing = size - len(chosen)
    if missing <= 0:
        return chosen
    candidates = set(available).difference(chosen)
    free = bytes(device in candidates for device in order)
    choices = []
    for mask in numa.narrow(free, order, chosen, missing, numa_nodes):
        start = mask.find(b"\1" * missing)
        lowest = [position for position, is_free in enumerate(mask) if is_free][:missing]
        choices.append((start < 0, lowest if start < 0 else list(range(start, start + missing))))
    return chosen + [order[position] for position in min(choices)[1]]


def on(devices: list[str], places: list[int]) -> dict[str, tuple[int, ...]]:
    """Return the NUMA nodes of the devices, in runs of five."""
    return {device: NUMA_NODES[places[position // 5 % len(places)]] for position, device in enumerate(devices)}


@st.composite
def hosts(draw: st.DrawFn) -> tuple[list[str], list[str], dict[str, tuple[int, ...]]]:
    """Draw devices in natural order, the free ones with some that the plugin does not know, and NUMA nodes."""
    prefixes = draw(st.lists(st.sampled_from(PREFIXES), min_size=1, max_size=3, unique=True))
    numbers = draw(st.integers(1, 260))
    known = natural_sort(list({f"{prefix}{number}" for prefix in prefixes for number in range(numbers)}))
    taken = draw(st.integers(0, len(known)))  # containers have the lowest ones
    returned = draw(st.sets(st.sampled_from(known), max_size=12)) if draw(st.booleans()) else set[str]()
    busy = draw(st.sets(st.sampled_from(known), max_size=12))
    free = sorted((set(known[taken:]) | returned) - busy) + sorted(draw(st.sets(IDS, max_size=3)) - set(known))
    random.Random(draw(st.integers(0, 9))).shuffle(free)  # noqa: S311 - no secret
    places = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)) if draw(st.booleans()) else []
    return known, free, on(known, places) if places else {}


@given(hosts(), SIZES, st.data())
@settings(derandomize=True, deadline=None, max_examples=400)
def test_choice_from_encoded_request_is_that_from_all_free_devices(
    host: tuple[list[str], list[str], dict[str, tuple[int, ...]]], size: int, data: st.DataObject
) -> None:
    known, free, numa_nodes = host
    must = data.draw(st.lists(st.sampled_from(free or known), max_size=min(3, len(free))))
    encoded = request(free, must, size)
    assert (list(encoded.available), list(encoded.must_include), encoded.size) == (free, must, size)
    chosen = prefer(known, encoded.available, must, size, numa_nodes, encoded.available.starting_with)
    assert chosen == reference(known, free, must, size, numa_nodes) == prefer(known, free, must, size, numa_nodes)


@given(hosts(), st.integers(2, 12), SIZES, st.data())
@settings(derandomize=True, deadline=None, max_examples=200)
def test_replicas_from_encoded_request_are_those_from_all_free_ones(
    host: tuple[list[str], list[str], dict[str, tuple[int, ...]]], count: int, size: int, data: st.DataObject
) -> None:
    known, free, numa_nodes = host
    used = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
    spare = [f"{device}::{replica}" for device in free for replica in range(count) if replica not in used]
    spare += [replica for device in known[:2] for replica in replica_ids(device, count) if replica not in spare]
    encoded = request(spare, [], size)
    chosen = spread(known, count, encoded.available, [], size, numa_nodes, encoded.available.starting_with)
    assert chosen == spread(known, count, spare, [], size, numa_nodes)


@pytest.mark.parametrize("taken", [0, 9, 95, 350])
def test_lowest_devices_are_chosen_without_decoding_the_others(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if containers have some of the lowest ones, and with NUMA nodes."""
    monkeypatch.setattr(AvailableIds, "__iter__", None)
    known = [f"aosp_binder{number}" for number in range(10_000)]
    available = request(known[:taken:-1], [], 3).available
    assert available.is_long
    lowest = known[taken + 1 : taken + 4]
    assert prefer(known, available, [], 3, search=available.starting_with) == lowest
    assert prefer(known, available, [], 3, dict.fromkeys(known, (1,)), available.starting_with) == lowest
    assert prefer(known, available, known[:1], 2, search=available.starting_with) == [known[0], lowest[0]]


def test_unused_replicas_are_chosen_without_decoding_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AvailableIds, "__iter__", None)
    known = [f"aosp_binder{number}" for number in range(1000)]
    spare = [replica for device in known for replica in replica_ids(device, 10)]
    available = request(spare[3:], [], 3).available
    chosen = spread(known, 10, available, [], 3, search=available.starting_with)
    assert chosen == ["aosp_binder1::0", "aosp_binder2::0", "aosp_binder3::0"]


def test_several_containers_are_decoded_in_order() -> None:
    containers = [
        pb.ContainerPreferredAllocationRequest(available_deviceIDs=["b1"], allocation_size=size) for size in (2, 1)
    ]
    decoded = decode(pb.PreferredAllocationRequest(container_requests=containers).SerializeToString())
    assert [(list(each.available), each.size) for each in decoded] == [(["b1"], 2), (["b1"], 1)]
    assert (decoded[0].available[0], decoded[0].available[:5], len(decoded[0].available)) == ("b1", ["b1"], 1)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0a\x05\x0a", b"\x0a\x03\x0a\x05b", b"\x0a\x03\x12\x01\xff"])
def test_invalid_request_is_rejected(data: bytes) -> None:
    """No container, no message, a container or a device ID that ends too early, and an ID that is not UTF-8."""
    with pytest.raises(InvalidRequestError):
        decode(data)


def test_free_device_that_is_not_utf8_is_rejected_when_it_is_read() -> None:
    (invalid,) = decode(b"\x0a\x03\x0a\x01\xff")
    assert invalid.available.starting_with("b", 1) == set()
    with pytest.raises(InvalidRequestError, match="free devices in the request are invalid"):
        prefer(["b1"], invalid.available, [], 1)
