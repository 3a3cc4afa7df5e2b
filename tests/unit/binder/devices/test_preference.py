"""Preferred allocation: which of the free devices a container should get."""

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices.preference import prefer, spread
from aosp_plugin.binder.devices.sets import replicated_id

NUMA_NODES = {"0": (0,), "1": (1,), "2": (2,), "*": (0, 1), "-": ()}


def names(*numbers: int) -> list[str]:
    """Return the IDs of devices."""
    return [f"b{number}" for number in numbers]


def choose(known: int, available: list[int], must: list[int], size: int) -> list[str]:
    """Return the preferred devices of b0 to b<known - 1>."""
    return prefer(names(*range(known)), names(*available), names(*must), size)


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
def requests(draw: st.DrawFn, dropped: int = 0) -> tuple[int, list[int], list[int], int]:
    """Draw a request of a kubelet, which may still list ``dropped`` devices that the plugin does not know."""
    known = draw(st.integers(1, 24))
    available = draw(st.lists(st.integers(0, known - 1 + dropped), unique=True))
    must = draw(st.lists(st.sampled_from(available))) if available else []
    return known, available, must if dropped else list(dict.fromkeys(must)), draw(st.integers(-1, 26))


@given(requests(dropped=3))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_choice_is_the_lowest_sufficient_run(request: tuple[int, list[int], list[int], int]) -> None:
    """If no run is long enough, the lowest devices are chosen. Included devices come first."""
    assert choose(*request) == naive(*request)


def test_huge_size_allocates_no_memory() -> None:
    """The search for a run allocates as many bytes as the run is long."""
    tracemalloc.start()
    try:
        assert choose(6, [5, 1], [], 2**31 - 1) == names(1, 5)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_runs_ignore_numbers_that_do_not_exist() -> None:
    assert prefer(names(0, 2, 3, 9, 10), names(10, 9, 3, 0), [], 3) == names(3, 9, 10)


def on(places: str) -> dict[str, tuple[int, ...]]:
    """Return the NUMA nodes of the devices from b0 on, one character of ``NUMA_NODES`` for each."""
    return {f"b{number}": NUMA_NODES[place] for number, place in enumerate(places)}


def choose_on(places: str, available: list[int], must: list[int], size: int) -> list[str]:
    """Return the preferred devices of those in ``places``."""
    return prefer(names(*range(len(places))), names(*available), names(*must), size, on(places))


@pytest.mark.parametrize(
    ("places", "available", "must", "size", "chosen"),
    [
        pytest.param("00001111", [2, 3, 4, 5, 6], [], 3, [4, 5, 6], id="run does not extend over two nodes"),
        pytest.param("000111", [0, 2, 4, 5], [], 2, [4, 5], id="run comes before scattered devices"),
        pytest.param("00001111", [0, 1, 3, 7], [5], 4, [5, 0, 1, 3], id="another node is added to that of b5"),
        pytest.param("00001111", [0, 1, 4, 6], [5], 3, [5, 4, 6], id="that of an allocated device comes first"),
        pytest.param("0*1*1", [0, 1, 2, 3, 4], [], 2, [1, 3], id="devices on the same two nodes are together"),
        pytest.param("0011", [1, 2, 3], [9], 3, [9, 2, 3], id="unknown device is on no node"),
    ],
)
def test_devices_of_a_container_are_on_one_numa_node_that_has_enough(
    places: str, available: list[int], must: list[int], size: int, chosen: list[int]
) -> None:
    assert choose_on(places, available, must, size) == names(*chosen)


@given(requests(), st.text(alphabet="-012", min_size=24, max_size=24))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_one_numa_node_is_enough_if_it_has_enough(request: tuple[int, list[int], list[int], int], places: str) -> None:
    """On a single NUMA node, the choice is the one among its devices alone."""
    known, available, _, size = request
    numa_nodes = on(places[:known])
    chosen = choose_on(places[:known], available, [], size)
    assert len(chosen) == len(set(chosen)) == len(choose(known, available, [], size))
    used = {numa_nodes[device] for device in chosen}
    free = Counter(numa_nodes[device] for device in names(*set(available)))
    if any(count >= size for count in free.values()):
        assert len(used) <= 1
        on_it = [number for number in available if {numa_nodes[f"b{number}"]} == used]
        assert chosen == choose(known, on_it, [], size)


def replicas(free: str) -> list[str]:
    """Return the IDs of replicas; "3:01" stands for the first two of b3."""
    return [f"b{text.partition(':')[0]}::{replica}" for text in free.split() for replica in text.partition(":")[2]]


@pytest.mark.parametrize(
    ("free", "must", "size", "chosen"),
    [
        pytest.param("2:012 1:012 0:12", "", 2, "1:0 2:0", id="different devices"),
        pytest.param("0:2 1:12 2:012 3:12", "", 4, "2:0 1:1 3:1 0:2", id="least shared devices first"),
        pytest.param("0:012 1:12", "", 5, "0:0 1:1 0:1 1:2 0:2", id="every device twice before any thrice"),
        pytest.param("0:012 1:12", "0:01 1:1", 4, "0:01 1:12", id="replicas of included devices come last"),
        pytest.param("9:0 0:3 1:0", "", 3, "1:0", id="unknown device, unknown replica"),
    ],
)
def test_replicas_of_the_least_shared_devices_are_chosen(free: str, must: str, size: int, chosen: str) -> None:
    assert spread(names(*range(4)), 3, replicas(free), replicas(must), size) == replicas(chosen)


@given(st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=6), st.integers(0, 20))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_replicas_are_spread_evenly(free: list[set[int]], size: int) -> None:
    """No device is chosen twice more often than another one that has a free replica."""
    devices = names(*range(len(free)))
    offered = [f"b{number}::{replica}" for number, numbers in enumerate(free) for replica in sorted(numbers)]
    chosen = spread(devices, 3, offered, [], size)
    assert set(chosen) <= set(offered)
    assert len(chosen) == len(set(chosen)) == min(size, len(offered))
    times = {device: sum(replicated_id(id_, 3) == device for id_ in chosen) for device in devices}
    left = [times[f"b{number}"] for number, numbers in enumerate(free) if len(numbers) > times[f"b{number}"]]
    assert max(times.values()) <= min(left, default=3) + 1
