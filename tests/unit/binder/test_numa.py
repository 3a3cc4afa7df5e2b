"""NUMA nodes: ranges of numbers, and the choice of as few nodes as possible."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices.preference import NumaMap, Range, narrow, parse_numa


def test_parse_rejects_reversed_and_overlapping_ranges() -> None:
    for ranges in ({"0-10": 0, "10-20": 1}, {"5-6": 0, "0-100": 0}, {"7": 0, "07": 0}):
        with pytest.raises(ValueError, match="overlap"):
            parse_numa(ranges)
    with pytest.raises(ValueError, match="ends before it begins"):
        parse_numa({"9-8": 0})


def test_last_number_of_a_name_selects_the_numa_node() -> None:
    names = {"5_binder15": (1,), "binder5.x": (0,), "phone-15-binder": (1,), "b015": (1,), "binder": (), "b٣": ()}
    for name, numa_nodes in names.items():
        assert parse_numa({"0-9": 0, "10-19": 1}).of([name]) == numa_nodes


def test_set_is_on_the_numa_nodes_of_all_its_members() -> None:
    numa_map = parse_numa({"0-179": 2, "180-299": 63, "300-359": 1})
    assert numa_map.of(["b310", "b190", "b70"]) == (1, 2, 63)
    assert numa_map.of(["b1", "b121", "b999"]) == (2,)
    assert numa_map.of(["b999"]) == numa_map.of([]) == NumaMap().of(["b1"]) == ()


@given(st.dictionaries(st.integers(0, 30), st.integers(0, 3), max_size=12))
@settings(derandomize=True, deadline=None)
def test_ranges_include_both_ends_and_may_be_in_any_order(places: dict[int, int]) -> None:
    """Single numbers and ranges are equivalent."""
    ranges: list[Range] = []
    for number in sorted(places):
        if ranges and ranges[-1].last == number - 1 and ranges[-1].numa_node == places[number]:
            ranges[-1] = ranges[-1]._replace(last=number)
        else:
            ranges.append(Range(number, number, places[number]))
    single = parse_numa({str(number): place for number, place in places.items()})
    joined = parse_numa({f"{range_.first}-{range_.last}": range_.numa_node for range_ in reversed(ranges)})
    for number in range(32):
        expected = (places[number],) if number in places else ()
        assert single.of([f"b{number}"]) == joined.of([f"b{number}"]) == expected


NUMA_NODES = {"0": (0,), "1": (1,), "2": (2,), "3": (3,), "*": (0, 1), "-": ()}


@pytest.mark.parametrize(
    ("places", "free", "allocated", "count", "choices"),
    [
        pytest.param("", "x.xxx..x", [], 3, {"x.xxx..x"}, id="no NUMA nodes"),
        pytest.param("00001111", "x.xx....", [], 2, {"x.xx...."}, id="one NUMA node has all devices"),
        pytest.param("00001111", "x.xxxx..", [], 2, {"x.xx....", "....xx.."}, id="each sufficient node is a choice"),
        pytest.param("00001111", "x.xxxx..", [], 5, {"x.xxxx.."}, id="no node is sufficient"),
        pytest.param("00001111", "x.xxxx..", ["b7"], 2, {"....xx.."}, id="node of an allocated device"),
        pytest.param("00001111", "x.xxxx..", ["b1", "b7"], 1, {"x.xxxx.."}, id="nodes of all allocated devices"),
        pytest.param("00112233", "xx.xxx..", ["b6"], 2, {"xx......", "....xx.."}, id="allocated node has none free"),
        pytest.param("01122233", "xxxxxxxx", [], 5, {".xxxxx..", "...xxxxx"}, id="largest node is included first"),
        pytest.param("00112233", "xxxxxxxx", [], 3, {"xxxx....", "xx..xx..", "xx....xx"}, id="lowest of equal nodes"),
        pytest.param("*000111*", "xx.....x", [], 1, {".x......"}, id="device on two nodes is not needed"),
        pytest.param("*000111*", "xx..x...", ["b7"], 1, {"xx..x..."}, id="both nodes are included anyway"),
        pytest.param("00------", "xx.xx...", ["b7"], 1, {"...xx..."}, id="allocated device without a node"),
        pytest.param("00", "xx.xx...", ["gone"], 1, {"...xx..."}, id="unknown allocated device"),
    ],
)
def test_narrow_restricts_the_devices_to_as_few_numa_nodes_as_possible(
    places: str, free: str, allocated: list[str], count: int, choices: set[str]
) -> None:
    order = [f"b{number}" for number in range(8)]
    numa_nodes = {name: NUMA_NODES[place] for name, place in zip(order, places, strict=False)}
    positions = [position for position, device in enumerate(free) if device == "x"]
    found = narrow(positions, order, allocated, count, numa_nodes)
    narrowed = ["".join("x" if position in choice else "." for position in range(8)) for choice in found]
    assert (set(narrowed), len(narrowed)) == (choices, len(choices))
