"""Preferred allocation: which of the free devices a container should get."""

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
    """Return the preferred devices of b0 to b<known - 1>."""
    order = names(*range(known))
    return prefer(order, names(*available), names(*must), size)


def naive(known: int, available: list[int], must: list[int], size: int) -> list[str]:
    """Return what ``prefer`` should return, by its definition."""
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
    """Draw a request of a kubelet: free devices in any order, and devices that must be included."""
    known = draw(st.integers(1, 24))
    available = draw(st.lists(st.integers(0, known - 1), unique=True))
    must = draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    return known, available, must, draw(st.integers(0, 26))


def test_lowest_sufficient_run_is_chosen() -> None:
    """The order of the available devices does not matter."""
    assert choose(10, [9, 0, 1, 3, 4, 5, 7, 8], [], 3) == names(3, 4, 5)
    assert choose(10, [5, 8, 4, 7, 3, 1, 0, 9], [], 3) == names(3, 4, 5)


def test_lowest_devices_are_chosen_if_no_run_is_long_enough() -> None:
    assert choose(10, [8, 0, 2, 4, 9], [], 3) == names(0, 2, 4)


def test_all_free_devices_are_chosen_if_there_are_too_few() -> None:
    assert choose(10, [1, 3], [], 3) == names(1, 3)
    assert choose(10, [], [], 3) == []


def test_huge_size_allocates_no_memory() -> None:
    """The search for a run allocates as many bytes as the run is long."""
    tracemalloc.start()
    try:
        assert choose(6, [5, 1], [], 2**31 - 1) == names(1, 5)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_devices_that_must_be_included_come_first() -> None:
    """The run has only as many devices as are missing."""
    assert choose(10, [0, 1, 2, 3, 4], [1], 3) == names(1, 2, 3)
    assert choose(10, [0, 1, 2, 3], [3, 3, 2], 3) == names(3, 2, 0)


def test_nothing_is_added_to_enough_included_devices() -> None:
    assert choose(10, [0, 1, 2], [2, 1], 2) == names(2, 1)
    assert choose(10, [0, 1, 2], [2, 1], 1) == names(2, 1)
    assert choose(10, [0, 1, 2], [], 0) == []
    assert choose(10, [0, 1, 2], [], -1) == []


def test_unknown_devices_are_chosen_only_if_they_must_be_included() -> None:
    """The kubelet may still list a device that was dropped."""
    assert choose(3, [7, 8, 9, 1, 0], [], 3) == names(0, 1)
    assert choose(3, [7, 8, 9, 1, 0], [9], 3) == names(9, 0, 1)


def test_runs_ignore_numbers_that_do_not_exist() -> None:
    order = names(0, 2, 3, 9, 10)
    assert prefer(order, names(10, 9, 3, 0), [], 3) == names(3, 9, 10)


@given(requests())
@settings(derandomize=True, deadline=None, max_examples=400)
def test_choice_follows_the_definition(request: tuple[int, list[int], list[int], int]) -> None:
    _, available, must, size = request
    chosen = choose(*request)
    assert chosen == naive(*request)
    assert len(chosen) == len(set(chosen)) == max(len(must), min(size, len(available)))
    assert set(names(*must)) <= set(chosen) <= set(names(*available, *must))


def test_prefer_handles_as_many_devices_as_fit_into_a_message() -> None:
    """The only run is at the end, and the available devices are in random order."""
    known = 130_000
    numbers = [number for number in range(known) if number % 2 == 0 or number > known - 4]
    random.Random(7).shuffle(numbers)  # noqa: S311 - no secret
    assert choose(known, numbers, [], 4) == names(*range(known - 4, known))
    assert choose(known, numbers, [], known) == names(*sorted(numbers))


def on(*numa_nodes: int | None) -> dict[str, tuple[int, ...]]:
    """Return the NUMA nodes of the devices from b0 on; None stands for no NUMA node."""
    return {f"b{number}": () if node is None else (node,) for number, node in enumerate(numa_nodes)}


def choose_on(numa_nodes: dict[str, tuple[int, ...]], available: list[int], must: list[int], size: int) -> list[str]:
    """Return the preferred devices of those in ``numa_nodes``."""
    return prefer(list(numa_nodes), names(*available), names(*must), size, numa_nodes)


def test_devices_of_a_container_are_on_one_numa_node() -> None:
    """A run does not extend over two NUMA nodes."""
    two = on(0, 0, 0, 0, 1, 1, 1, 1)
    assert choose_on(two, [2, 3, 4, 5, 6], [], 3) == names(4, 5, 6)
    assert choose_on(two, [0, 2, 3, 4, 5, 7], [], 2) == names(2, 3)
    assert choose_on(two, [0, 2, 3, 4, 6, 7], [], 3) == names(0, 2, 3)
    assert choose_on(two, [3, 4, 6, 7], [], 3) == names(4, 6, 7)


def test_numa_node_with_a_run_comes_before_one_with_scattered_devices() -> None:
    assert choose_on(on(0, 0, 0, 1, 1, 1), [0, 2, 4, 5], [], 2) == names(4, 5)


def test_included_devices_select_the_numa_node() -> None:
    """If it has too few devices, another NUMA node is added."""
    two = on(0, 0, 0, 0, 1, 1, 1, 1)
    assert choose_on(two, [0, 1, 2, 3, 5, 7], [5], 2) == names(5, 7)
    assert choose_on(two, [0, 1, 3, 7], [5], 4) == names(5, 0, 1, 3)
    assert choose_on(on(0, 1, 2, 2, 2), [0, 1, 2, 3, 4], [0], 3) == names(0, 2, 3)


def test_as_few_numa_nodes_as_possible_are_used() -> None:
    three = on(0, 0, 1, 2, 2, 2)
    assert choose_on(three, [0, 1, 2, 3, 4, 5], [], 5) == names(0, 1, 3, 4, 5)
    assert choose_on(three, [0, 1, 2, 3, 4, 5], [], 6) == names(0, 1, 2, 3, 4, 5)
    assert choose_on(three, [0, 1, 2], [], 9) == names(0, 1, 2)
    assert choose_on(three, [], [], 2) == []


def test_devices_without_a_numa_node_are_kept_together() -> None:
    partly = on(0, 0, None, None, None)
    assert choose_on(partly, [1, 2, 3, 4], [], 2) == names(2, 3)
    assert choose_on(partly, [0, 1, 2, 3], [3], 2) == names(3, 2)
    assert choose_on(partly, [0, 1, 2, 3], [0], 2) == names(0, 1)
    assert prefer(names(0, 1, 2), names(0, 1, 2), names(2), 2, {"b0": (0,)}) == names(2, 1)
    assert prefer(names(0, 1, 2), names(1, 2), [], 2, {"b0": (0,)}) == names(1, 2)


def test_device_on_two_numa_nodes_is_chosen_last() -> None:
    spanning: dict[str, tuple[int, ...]] = {"b0": (0, 1), "b1": (0, 1), "b2": (0, 1), "b3": (1,)}
    assert choose_on(spanning, [0, 1, 2, 3], [], 1) == names(3)
    assert choose_on(spanning, [0, 2, 3], [], 2) == names(2, 3)
    assert choose_on(spanning, [0, 1, 2], [], 2) == names(0, 1)


def test_unknown_included_device_is_on_no_numa_node() -> None:
    assert choose_on(on(0, 0, 1, 1), [1, 2, 3], [9], 3) == names(9, 2, 3)


@given(requests(), st.lists(st.none() | st.integers(0, 2), min_size=24, max_size=24))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_number_of_numa_nodes_is_minimal(
    request: tuple[int, list[int], list[int], int], places: list[int | None]
) -> None:
    """On a single NUMA node, the choice is the one among its devices alone."""
    known, available, must, size = request
    numa_nodes = on(*places[:known])
    chosen = choose_on(numa_nodes, available, must, size)
    assert len(chosen) == len(set(chosen)) == len(choose(known, available, must, size))
    used, near = {numa_nodes[device] for device in chosen}, {numa_nodes[device] for device in names(*must)}
    free = [numa_nodes[device] for device in names(*set(available) - set(must))]
    missing = len(chosen) - len(must)
    choices = [near.union(added) for count in range(5) for added in itertools.combinations(set(free), count)]
    assert len(used) == min(len(choice) for choice in choices if sum(place in choice for place in free) >= missing)
    if len(used) == 1:
        (place,) = used
        on_it = [number for number in available if numa_nodes[f"b{number}"] == place]
        assert chosen == choose(known, on_it, must, size)


@given(requests())
@settings(derandomize=True, deadline=None)
def test_single_numa_node_does_not_change_the_choice(request: tuple[int, list[int], list[int], int]) -> None:
    known, available, must, size = request
    plain = choose(known, available, must, size)
    assert choose_on(on(*[1] * known), available, must, size) == plain
    assert choose_on(on(*[None] * known), available, must, size) == plain
    assert prefer(names(*range(known)), names(*available), names(*must), size, {}) == plain


def replicas(*free: str) -> list[str]:
    """Return the IDs of replicas; "3:01" stands for the first two of b3."""
    return [f"b{text.partition(':')[0]}::{replica}" for text in free for replica in text.partition(":")[2]]


def choose_shared(free: list[str], must: list[str], size: int, known: int = 4, count: int = 3) -> list[str]:
    """Return the preferred replicas, of ``count`` for each device."""
    return spread(names(*range(known)), count, replicas(*free), replicas(*must), size)


def test_replicas_of_different_devices_are_chosen() -> None:
    """The lowest devices come first, with their lowest free replica."""
    assert choose_shared(["2:012", "1:012", "0:12"], [], 2) == replicas("1:0", "2:0")
    assert choose_shared(["0:012", "1:012", "2:012", "3:012"], [], 3) == replicas("0:0", "1:0", "2:0")
    assert choose_shared(["0:21"], [], 1) == replicas("0:1")


def test_least_shared_device_comes_first() -> None:
    assert choose_shared(["0:2", "1:12", "2:012", "3:12"], [], 1) == replicas("2:0")
    assert choose_shared(["0:2", "1:12", "2:012", "3:12"], [], 4) == replicas("2:0", "1:1", "3:1", "0:2")


def test_no_device_is_chosen_twice_while_there_are_others() -> None:
    """Every device is chosen twice before any is chosen three times."""
    assert choose_shared(["0:012", "1:2"], [], 2) == replicas("0:0", "1:2")
    assert choose_shared(["0:012", "1:12"], [], 5) == replicas("0:0", "1:1", "0:1", "1:2", "0:2")
    assert choose_shared(["0:012"], [], 9) == replicas("0:012")


def test_other_replicas_of_included_devices_come_last() -> None:
    assert choose_shared(["0:012", "1:2"], ["0:0"], 2) == replicas("0:0", "1:2")
    assert choose_shared(["0:012", "1:12"], ["0:01", "1:1"], 4) == replicas("0:01", "1:12")
    assert choose_shared(["0:012"], ["0:1", "0:1"], 2) == replicas("0:10")
    assert choose_shared(["0:012"], ["0:10"], 1) == replicas("0:10")


def test_unknown_replicas_are_chosen_only_if_they_must_be_included() -> None:
    """Their device was dropped, or the number of replicas was reduced."""
    assert choose_shared(["9:0", "0:3", "1:0"], [], 3) == replicas("1:0")
    assert choose_shared(["1:0"], ["9:0"], 2) == replicas("9:0", "1:0")
    assert choose_shared([], [], 2) == []
    assert choose_shared(["1:0"], [], 0) == []


def shared_on(numa_nodes: dict[str, tuple[int, ...]], free: list[str], must: list[str], size: int) -> list[str]:
    """Return the preferred replicas, of two for each device in ``numa_nodes``."""
    return spread(list(numa_nodes), 2, replicas(*free), replicas(*must), size, numa_nodes)


def test_replicas_of_a_container_are_on_the_least_shared_numa_node() -> None:
    """Different devices take precedence over few NUMA nodes."""
    two = on(0, 0, 1, 1)
    assert shared_on(two, ["0:1", "1:1", "2:01", "3:01"], [], 2) == replicas("2:0", "3:0")
    assert shared_on(two, ["0:1", "1:1", "2:01", "3:1"], [], 1) == replicas("2:0")
    assert shared_on(two, ["0:01", "2:1", "3:1"], [], 2) == replicas("2:1", "3:1")
    assert shared_on(two, ["0:01", "1:01", "2:1"], [], 3) == replicas("0:0", "1:0", "2:1")
    assert shared_on(two, ["0:01", "1:01", "2:1", "3:1"], ["2:0"], 2) == replicas("2:0", "3:1")


def test_second_replicas_may_be_on_all_numa_nodes_in_use() -> None:
    assert shared_on(on(0, 0, 1), ["0:1", "1:1", "2:01"], ["0:0"], 4) == replicas("0:0", "2:0", "1:1", "0:1")


@given(
    st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=6),
    st.integers(0, 20),
    st.lists(st.integers(0, 1), min_size=6, max_size=6),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_replicas_are_spread_evenly(free: list[set[int]], size: int, places: list[int]) -> None:
    """No device is chosen twice more often than another one that has a free replica."""
    devices = names(*range(len(free)))
    offered = [f"b{number}::{replica}" for number, numbers in enumerate(free) for replica in sorted(numbers)]
    numa_nodes = on(*places[: len(free)])
    for chosen in (spread(devices, 3, offered, [], size), spread(devices, 3, offered, [], size, numa_nodes)):
        assert set(chosen) <= set(offered)
        assert len(chosen) == len(set(chosen)) == min(size, len(offered))
        times = {device: sum(split_replica(id_, 3)[0] == device for id_ in chosen) for device in devices}
        left = [times[f"b{number}"] for number, numbers in enumerate(free) if len(numbers) > times[f"b{number}"]]
        assert max(times.values()) <= min(left, default=3) + 1


@pytest.mark.parametrize("size", [1, 5])
def test_consecutive_containers_share_devices_evenly(size: int) -> None:
    """At no time does any device have two more allocated replicas than another one."""
    devices = names(*range(10))
    free = {id_ for device in devices for id_ in replica_ids(device, 6)}
    for _ in range(12):
        chosen = spread(devices, 6, sorted(free), [], size)
        assert len({split_replica(id_, 6)[0] for id_ in chosen}) == size
        free -= set(chosen)
        left = [sum(split_replica(id_, 6)[0] == device for id_ in free) for device in devices]
        assert max(left) - min(left) <= 1


def test_spread_handles_as_many_replicas_as_fit_into_a_message() -> None:
    devices = names(*range(13_000))
    offered = [id_ for device in devices for id_ in replica_ids(device, 10)]
    random.Random(7).shuffle(offered)  # noqa: S311 - no secret
    numa_nodes = on(*[number * 4 // 13_000 for number in range(13_000)])
    assert spread(devices, 10, offered, [], 3, numa_nodes) == replicas("0:0", "1:0", "2:0")
