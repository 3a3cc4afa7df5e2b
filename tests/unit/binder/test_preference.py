"""Which of the free devices a container should get."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices.preference import prefer, spread
from aosp_plugin.binder.devices.sets import replica_ids, split_replica


def names(*numbers: int) -> list[str]:
    """Return the IDs of devices."""
    return [f"b{number}" for number in numbers]


def choose(known: int, available: list[int], must: list[int], size: int) -> list[str]:
    """Ask for a preference among devices 0 to ``known``."""
    order = names(*range(known))
    return prefer(order, names(*available), names(*must), size)


def naive(known: int, available: list[int], must: list[int], size: int) -> list[str]:
    """Say the same as ``prefer`` does, in the simplest words."""
    chosen = list(dict.fromkeys(must))
    free = sorted({number for number in available if number < known} - set(chosen))
    missing = max(0, size - len(chosen))
    for first in free:
        run = list(range(first, first + missing))
        if missing and set(run) <= set(free):
            return names(*chosen, *run)
    return names(*chosen, *free[:missing])


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, list[int], list[int], int]:
    """Draw what a kubelet may ask: free devices in any order, and those that must be among the chosen."""
    known = draw(st.integers(1, 24))
    available = draw(st.lists(st.integers(0, known - 1), unique=True))
    must = draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    return known, available, must, draw(st.integers(0, 26))


def test_the_lowest_run_that_is_long_enough_is_chosen() -> None:
    """Shorter runs below it are passed over, and the order of the free ones does not matter."""
    assert choose(10, [9, 0, 1, 3, 4, 5, 7, 8], [], 3) == names(3, 4, 5)
    assert choose(10, [5, 8, 4, 7, 3, 1, 0, 9], [], 3) == names(3, 4, 5)


def test_the_lowest_ones_are_chosen_where_no_run_is_long_enough() -> None:
    """A container gets its devices even where the free ones are scattered."""
    assert choose(10, [8, 0, 2, 4, 9], [], 3) == names(0, 2, 4)


def test_fewer_are_chosen_where_fewer_are_free() -> None:
    """What the kubelet makes of it is its own decision."""
    assert choose(10, [1, 3], [], 3) == names(1, 3)
    assert choose(10, [], [], 3) == []


def test_a_number_beyond_all_devices_takes_no_memory() -> None:
    """The largest that a request can carry: as many bytes were made to look for a run of that length."""
    tracemalloc.start()
    try:
        assert choose(6, [5, 1], [], 2**31 - 1) == names(1, 5)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_must_be_included_comes_first_and_counts() -> None:
    """The run is as long as what is missing, and does not use the included ones again."""
    assert choose(10, [0, 1, 2, 3, 4], [1], 3) == names(1, 2, 3)
    assert choose(10, [0, 1, 2, 3], [3, 3, 2], 3) == names(3, 2, 0)


def test_nothing_is_added_where_enough_must_be_included() -> None:
    """Too many of them are the kubelet's affair."""
    assert choose(10, [0, 1, 2], [2, 1], 2) == names(2, 1)
    assert choose(10, [0, 1, 2], [2, 1], 1) == names(2, 1)
    assert choose(10, [0, 1, 2], [], 0) == []
    assert choose(10, [0, 1, 2], [], -1) == []


def test_devices_that_are_not_known_are_not_chosen() -> None:
    """A kubelet may still list one that was forgotten; as an included one it is given back."""
    assert choose(3, [7, 8, 9, 1, 0], [], 3) == names(0, 1)
    assert choose(3, [7, 8, 9, 1, 0], [9], 3) == names(9, 0, 1)


def test_neighbours_are_those_in_the_order_not_those_in_the_numbers() -> None:
    """Where a number does not exist, the ones around it stand side by side."""
    order = names(0, 2, 3, 9, 10)
    assert prefer(order, names(10, 9, 3, 0), [], 3) == names(3, 9, 10)


@given(requests())
@settings(derandomize=True, deadline=None, max_examples=400)
def test_the_choice_is_the_naive_one(request: tuple[int, list[int], list[int], int]) -> None:
    """Whatever is free, the result equals that of the plain definition."""
    assert choose(*request) == naive(*request)


@given(requests())
@settings(derandomize=True, deadline=None, max_examples=400)
def test_the_choice_has_the_right_size_and_is_made_of_what_was_offered(
    request: tuple[int, list[int], list[int], int],
) -> None:
    """As many as were asked for where so many are free, each once, and the included ones among them."""
    _, available, must, size = request
    chosen = choose(*request)
    assert len(chosen) == len(set(chosen)) == max(len(must), min(size, len(available)))
    assert set(names(*must)) <= set(chosen) <= set(names(*available, *must))


def test_as_many_devices_as_a_message_carries_are_chosen_from() -> None:
    """130,000 free ones in random order, where only the last ones stand side by side."""
    known = 130_000
    numbers = [number for number in range(known) if number % 2 == 0 or number > known - 4]
    random.Random(7).shuffle(numbers)  # noqa: S311 - no secret
    assert choose(known, numbers, [], 4) == names(*range(known - 4, known))
    assert choose(known, numbers, [], known) == names(*sorted(numbers))


def on(*numa_nodes: int | None) -> dict[str, tuple[int, ...]]:
    """Return the NUMA node of each device, from b0 on; None where none is known."""
    return {f"b{number}": () if one is None else (one,) for number, one in enumerate(numa_nodes)}


def choose_on(numa_nodes: dict[str, tuple[int, ...]], available: list[int], must: list[int], size: int) -> list[str]:
    """Ask for a preference among devices whose NUMA nodes are known."""
    return prefer(list(numa_nodes), names(*available), names(*must), size, numa_nodes)


def test_a_container_is_kept_on_one_numa_node() -> None:
    """A run that crosses from one to the next is none."""
    two = on(0, 0, 0, 0, 1, 1, 1, 1)
    assert choose_on(two, [2, 3, 4, 5, 6], [], 3) == names(4, 5, 6)
    assert choose_on(two, [0, 2, 3, 4, 5, 7], [], 2) == names(2, 3)
    assert choose_on(two, [0, 2, 3, 4, 6, 7], [], 3) == names(0, 2, 3)
    assert choose_on(two, [3, 4, 6, 7], [], 3) == names(4, 6, 7)


def test_the_lowest_run_inside_a_numa_node_counts_before_scattered_ones_below() -> None:
    """The other NUMA node has a whole run."""
    assert choose_on(on(0, 0, 0, 1, 1, 1), [0, 2, 4, 5], [], 2) == names(4, 5)


def test_what_must_be_included_decides_the_numa_node() -> None:
    """Even where another one has a longer run; and where it has too few, one more joins it."""
    two = on(0, 0, 0, 0, 1, 1, 1, 1)
    assert choose_on(two, [0, 1, 2, 3, 5, 7], [5], 2) == names(5, 7)
    assert choose_on(two, [0, 1, 3, 7], [5], 4) == names(5, 0, 1, 3)
    assert choose_on(on(0, 1, 2, 2, 2), [0, 1, 2, 3, 4], [0], 3) == names(0, 2, 3)


def test_as_few_numa_nodes_as_possible_are_used() -> None:
    """Where no single one has enough: those that bring the most."""
    three = on(0, 0, 1, 2, 2, 2)
    assert choose_on(three, [0, 1, 2, 3, 4, 5], [], 5) == names(0, 1, 3, 4, 5)
    assert choose_on(three, [0, 1, 2, 3, 4, 5], [], 6) == names(0, 1, 2, 3, 4, 5)
    assert choose_on(three, [0, 1, 2], [], 9) == names(0, 1, 2)
    assert choose_on(three, [], [], 2) == []


def test_devices_on_no_known_numa_node_are_kept_together_as_on_one() -> None:
    """Nobody says where they are: they are not mixed with others where that can be helped."""
    partly = on(0, 0, None, None, None)
    assert choose_on(partly, [1, 2, 3, 4], [], 2) == names(2, 3)
    assert choose_on(partly, [0, 1, 2, 3], [3], 2) == names(3, 2)
    assert choose_on(partly, [0, 1, 2, 3], [0], 2) == names(0, 1)
    assert prefer(names(0, 1, 2), names(0, 1, 2), names(2), 2, {"b0": (0,)}) == names(2, 1)
    assert prefer(names(0, 1, 2), names(1, 2), [], 2, {"b0": (0,)}) == names(1, 2)


def test_a_device_on_two_numa_nodes_is_taken_where_no_other_is_left() -> None:
    """A set may have nodes on both; with such ones alone, the lowest run is chosen as ever."""
    spanning: dict[str, tuple[int, ...]] = {"b0": (0, 1), "b1": (0, 1), "b2": (0, 1), "b3": (1,)}
    assert choose_on(spanning, [0, 1, 2, 3], [], 1) == names(3)
    assert choose_on(spanning, [0, 2, 3], [], 2) == names(2, 3)
    assert choose_on(spanning, [0, 1, 2], [], 2) == names(0, 1)


def test_an_included_device_that_is_not_known_is_on_no_numa_node() -> None:
    """It is given back, and leaves the choice open."""
    assert choose_on(on(0, 0, 1, 1), [1, 2, 3], [9], 3) == names(9, 2, 3)


@given(requests(), st.lists(st.none() | st.integers(0, 2), min_size=24, max_size=24))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_no_choice_is_on_fewer_numa_nodes(
    request: tuple[int, list[int], list[int], int], places: list[int | None]
) -> None:
    """Compared with all choices of NUMA nodes; on one alone, the choice is the plain one among its devices."""
    known, available, must, size = request
    numa_nodes = on(*places[:known])
    chosen = choose_on(numa_nodes, available, must, size)
    assert len(chosen) == len(set(chosen)) == len(choose(known, available, must, size))
    used, near = {numa_nodes[device] for device in chosen}, {numa_nodes[device] for device in names(*must)}
    free = [numa_nodes[device] for device in names(*set(available) - set(must))]
    missing = len(chosen) - len(must)
    reaches = [near.union(some) for count in range(5) for some in itertools.combinations(set(free), count)]
    assert len(used) == min(len(reach) for reach in reaches if sum(place in reach for place in free) >= missing)
    if len(used) == 1:
        (place,) = used
        there = [number for number in available if numa_nodes[f"b{number}"] == place]
        assert chosen == choose(known, there, must, size)


@given(requests())
@settings(derandomize=True, deadline=None)
def test_one_numa_node_for_all_changes_nothing(request: tuple[int, list[int], list[int], int]) -> None:
    """Nor does a map in which no device is."""
    known, available, must, size = request
    plain = choose(known, available, must, size)
    assert choose_on(on(*[1] * known), available, must, size) == plain
    assert choose_on(on(*[None] * known), available, must, size) == plain
    assert prefer(names(*range(known)), names(*available), names(*must), size, {}) == plain


def replicas(*free: str) -> list[str]:
    """Return IDs of replicas: "3:01" are the first two of b3."""
    return [f"b{one.partition(':')[0]}::{replica}" for one in free for replica in one.partition(":")[2]]


def choose_shared(free: list[str], must: list[str], size: int, known: int = 4, count: int = 3) -> list[str]:
    """Ask for a preference among ``count`` replicas of devices."""
    return spread(names(*range(known)), count, replicas(*free), replicas(*must), size)


def test_replicas_are_taken_of_different_devices() -> None:
    """The lowest ones first, and of each its lowest free replica."""
    assert choose_shared(["2:012", "1:012", "0:12"], [], 2) == replicas("1:0", "2:0")
    assert choose_shared(["0:012", "1:012", "2:012", "3:012"], [], 3) == replicas("0:0", "1:0", "2:0")
    assert choose_shared(["0:21"], [], 1) == replicas("0:1")


def test_the_device_with_the_fewest_replicas_taken_comes_first() -> None:
    """A container that asks for one gets the least shared one."""
    assert choose_shared(["0:2", "1:12", "2:012", "3:12"], [], 1) == replicas("2:0")
    assert choose_shared(["0:2", "1:12", "2:012", "3:12"], [], 4) == replicas("2:0", "1:1", "3:1", "0:2")


def test_no_device_comes_twice_while_there_are_others() -> None:
    """However much the others are shared; then all have a second one before any has a third."""
    assert choose_shared(["0:012", "1:2"], [], 2) == replicas("0:0", "1:2")
    assert choose_shared(["0:012", "1:12"], [], 5) == replicas("0:0", "1:1", "0:1", "1:2", "0:2")
    assert choose_shared(["0:012"], [], 9) == replicas("0:012")


def test_a_device_that_must_be_included_does_not_come_twice_either() -> None:
    """Its other replicas are the last resort; so are those of one that is included twice."""
    assert choose_shared(["0:012", "1:2"], ["0:0"], 2) == replicas("0:0", "1:2")
    assert choose_shared(["0:012", "1:12"], ["0:01", "1:1"], 4) == replicas("0:01", "1:12")
    assert choose_shared(["0:012"], ["0:1", "0:1"], 2) == replicas("0:10")
    assert choose_shared(["0:012"], ["0:10"], 1) == replicas("0:10")


def test_replicas_that_are_not_known_are_not_chosen() -> None:
    """Those of a forgotten device, and numbers beyond the count; as included ones they are given back."""
    assert choose_shared(["9:0", "0:3", "1:0"], [], 3) == replicas("1:0")
    assert choose_shared(["1:0"], ["9:0"], 2) == replicas("9:0", "1:0")
    assert choose_shared([], [], 2) == []
    assert choose_shared(["1:0"], [], 0) == []


def shared_on(numa_nodes: dict[str, tuple[int, ...]], free: list[str], must: list[str], size: int) -> list[str]:
    """Ask for a preference among two replicas of devices whose NUMA nodes are known."""
    return spread(list(numa_nodes), 2, replicas(*free), replicas(*must), size, numa_nodes)


def test_shared_devices_of_one_container_are_on_one_numa_node() -> None:
    """On the one of those where the fewest replicas are taken; different devices count before it."""
    two = on(0, 0, 1, 1)
    assert shared_on(two, ["0:1", "1:1", "2:01", "3:01"], [], 2) == replicas("2:0", "3:0")
    assert shared_on(two, ["0:1", "1:1", "2:01", "3:1"], [], 1) == replicas("2:0")
    assert shared_on(two, ["0:01", "2:1", "3:1"], [], 2) == replicas("2:1", "3:1")
    assert shared_on(two, ["0:01", "1:01", "2:1"], [], 3) == replicas("0:0", "1:0", "2:1")
    assert shared_on(two, ["0:01", "1:01", "2:1", "3:1"], ["2:0"], 2) == replicas("2:0", "3:1")


def test_a_second_replica_is_taken_where_all_numa_nodes_are_in_use() -> None:
    """Different devices count before few NUMA nodes, and a second round chooses among all of them."""
    assert shared_on(on(0, 0, 1), ["0:1", "1:1", "2:01"], ["0:0"], 4) == replicas("0:0", "2:0", "1:1", "0:1")


@given(
    st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=6),
    st.integers(0, 20),
    st.lists(st.integers(0, 1), min_size=6, max_size=6),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_replicas_are_spread_as_evenly_as_they_can_be(free: list[set[int]], size: int, places: list[int]) -> None:
    """As many as were asked for where so many are free, and no device has two more than another that had one left."""
    devices = names(*range(len(free)))
    offered = [f"b{number}::{replica}" for number, found in enumerate(free) for replica in sorted(found)]
    numa_nodes = on(*places[: len(free)])
    for chosen in (spread(devices, 3, offered, [], size), spread(devices, 3, offered, [], size, numa_nodes)):
        assert set(chosen) <= set(offered)
        assert len(chosen) == len(set(chosen)) == min(size, len(offered))
        times = {device: sum(split_replica(one, 3)[0] == device for one in chosen) for device in devices}
        left = [times[f"b{number}"] for number, found in enumerate(free) if len(found) > times[f"b{number}"]]
        assert max(times.values()) <= min(left, default=3) + 1


@pytest.mark.parametrize("size", [1, 5])
def test_containers_in_turn_share_devices_evenly(size: int) -> None:
    """Twelve containers one after the other: no device is ever taken twice more than another one."""
    devices = names(*range(10))
    free = {one for device in devices for one in replica_ids(device, 6)}
    for _ in range(12):
        chosen = spread(devices, 6, sorted(free), [], size)
        assert len({split_replica(one, 6)[0] for one in chosen}) == size
        free -= set(chosen)
        left = [sum(split_replica(one, 6)[0] == device for one in free) for device in devices]
        assert max(left) - min(left) <= 1


def test_as_many_replicas_as_a_message_carries_are_chosen_from() -> None:
    """130,000 in random order."""
    devices = names(*range(13_000))
    offered = [one for device in devices for one in replica_ids(device, 10)]
    random.Random(7).shuffle(offered)  # noqa: S311 - no secret
    numa_nodes = on(*[number * 4 // 13_000 for number in range(13_000)])
    assert spread(devices, 10, offered, [], 3, numa_nodes) == replicas("0:0", "1:0", "2:0")
