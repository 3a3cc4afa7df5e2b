"""NUMA nodes: ranges of numbers, and the choice of as few nodes as possible."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices.preference import NumaMap, Range, parse_numa


def test_parse_rejects_reversed_and_overlapping_ranges() -> None:
    for ranges, problem in (({"0-10": 0, "10-20": 1}, "overlap"), ({"7": 0, "07": 0}, "overlap"), ({"9-8": 0}, "ends")):
        with pytest.raises(ValueError, match=problem):
            parse_numa(ranges)


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
