"""NUMA nodes: ranges of numbers, and the choice of as few nodes as possible."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices.numa import NumaMap, Range, narrow, parse

ORDER = [f"b{number}" for number in range(8)]
HALVES: dict[str, tuple[int, ...]] = {name: (number // 4,) for number, name in enumerate(ORDER)}


def of(numa_map: NumaMap, number: int) -> tuple[int, ...]:
    """Return the NUMA nodes of one number."""
    return numa_map.of([f"b{number}"])


def test_ranges_include_both_ends() -> None:
    numa_map = parse({"10-179": 0, "180-359": 1, "400": 3})
    assert [of(numa_map, number) for number in (9, 10, 179, 180, 359, 360, 399, 400, 401)] == [
        (),
        (0,),
        (0,),
        (1,),
        (1,),
        (),
        (),
        (3,),
        (),
    ]


def test_ranges_are_sorted_by_number() -> None:
    assert parse({"100-109": 1, "20-29": 0, "3": 2}).ranges == (Range(3, 3, 2), Range(20, 29, 0), Range(100, 109, 1))
    assert parse({}) == NumaMap()


def test_numa_node_may_have_several_ranges() -> None:
    numa_map = parse({"0-1": 0, "2-3": 1, "4-5": 0})
    assert [of(numa_map, number) for number in range(7)] == [(0,), (0,), (1,), (1,), (0,), (0,), ()]


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ({"0-10": 0, "10-20": 1}, "0-10 and 10-20 overlap; a number must be on one NUMA node"),
        ({"5-6": 0, "0-100": 0}, "0-100 and 5-6 overlap"),
        ({"0-9": 0, "7": 1}, "0-9 and 7 overlap"),
        ({"7": 0, "7-8": 1}, "7 and 7-8 overlap"),
        ({"7": 0, "07": 0}, "7 and 7 overlap"),
        ({"10-20": 1, "30-40": 0, "0-10": 2}, "0-10 and 10-20 overlap"),
        ({"9-8": 0}, "the range 9-8 ends before it begins"),
        ({"": 0}, "'' is not a range of numbers such as 0-179"),
        ({"-5": 0}, "'-5' is not a range"),
        ({"5-": 0}, "'5-' is not a range"),
        ({"0 - 9": 0}, "'0 - 9' is not a range"),
        ({"0-9\n": 0}, "is not a range"),
        ({"0-9-10": 0}, "'0-9-10' is not a range"),
        ({"a": 0}, "'a' is not a range"),
        ({"²": 0}, "'²' is not a range"),
        ({"0-9": -1}, "the range 0-9 has NUMA node -1; allowed: 0 to 63"),
        ({"0-9": 64}, "the range 0-9 has NUMA node 64; allowed: 0 to 63"),
    ],
)
def test_parse_names_the_invalid_range(ranges: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("²", ".")):
        parse(ranges)


def test_numa_node_63_is_valid() -> None:
    """The kubelet stores NUMA nodes in 64 bits."""
    assert of(parse({"0": 63}), 0) == (63,)


@pytest.mark.parametrize(
    ("name", "numa_nodes"),
    [
        ("aosp_binder15", (1,)),
        ("aosp_binder5", (0,)),
        ("5_binder15", (1,)),
        ("binder5.x", (0,)),
        ("phone-15-binder", (1,)),
        ("b015", (1,)),
        ("15\n", (1,)),
        ("binder", ()),
        ("b99", ()),
        ("5_binder99", ()),
        ("", ()),
        ("b٣", ()),
    ],
)
def test_last_number_of_a_name_selects_the_numa_node(name: str, numa_nodes: tuple[int, ...]) -> None:
    assert parse({"0-9": 0, "10-19": 1}).of([name]) == numa_nodes


def test_set_is_on_the_numa_nodes_of_all_its_members() -> None:
    numa_map = parse({"0-179": 2, "180-299": 0, "300-359": 1})
    assert numa_map.of(["b1", "b121", "b241"]) == (0, 2)
    assert numa_map.of(["b310", "b190", "b70"]) == (0, 1, 2)
    assert numa_map.of(["b1", "b121"]) == (2,)
    assert numa_map.of(["b1", "b999"]) == (2,)
    assert numa_map.of(["b999"]) == numa_map.of([]) == NumaMap().of(["b1"]) == ()


@given(st.dictionaries(st.integers(0, 30), st.integers(0, 3), max_size=12))
@settings(derandomize=True, deadline=None)
def test_single_numbers_and_ranges_are_equivalent(places: dict[int, int]) -> None:
    ranges: list[Range] = []
    for number in sorted(places):
        if ranges and ranges[-1].last == number - 1 and ranges[-1].numa_node == places[number]:
            ranges[-1] = ranges[-1]._replace(last=number)
        else:
            ranges.append(Range(number, number, places[number]))
    single = parse({str(number): place for number, place in places.items()})
    joined = parse({f"{range_.first}-{range_.last}": range_.numa_node for range_ in reversed(ranges)})
    for number in range(32):
        expected = (places[number],) if number in places else ()
        assert of(single, number) == of(joined, number) == expected


def free(text: str) -> bytes:
    """Return a mask with a 1 for each x."""
    return bytes(character == "x" for character in text)


def test_narrow_keeps_all_devices_if_they_are_on_one_numa_node_or_none() -> None:
    assert narrow(free("x.xxx..x"), ORDER, [], 3, {}) == [free("x.xxx..x")]
    assert narrow(free("x.xx...."), ORDER, [], 2, HALVES) == [free("x.xx....")]
    assert narrow(free("........"), ORDER, [], 2, HALVES) == [free("........")]


def test_each_sufficient_numa_node_is_a_choice() -> None:
    assert sorted(narrow(free("x.xxxx.."), ORDER, [], 2, HALVES)) == sorted([free("x.xx...."), free("....xx..")])
    assert narrow(free("x.xxxx.."), ORDER, [], 3, HALVES) == [free("x.xx....")]


def test_numa_nodes_are_combined_if_none_is_sufficient() -> None:
    """The choice has all free devices if there are too few."""
    assert narrow(free("x.xxxx.."), ORDER, [], 5, HALVES) == [free("x.xxxx..")]
    assert narrow(free("x.xxxx.."), ORDER, [], 9, HALVES) == [free("x.xxxx..")]


def test_numa_nodes_of_allocated_devices_are_included() -> None:
    assert narrow(free("x.xxxx.."), ORDER, ["b7"], 2, HALVES) == [free("....xx..")]
    assert narrow(free("x.xxxx.."), ORDER, ["b7"], 3, HALVES) == [free("x.xxxx..")]
    assert narrow(free("x.xxxx.."), ORDER, ["b1", "b7"], 1, HALVES) == [free("x.xxxx..")]
    quarters = {name: (number // 2,) for number, name in enumerate(ORDER)}
    assert sorted(narrow(free("xx.xxx.."), ORDER, ["b6"], 2, quarters)) == sorted([free("xx......"), free("....xx..")])


def test_numa_nodes_with_the_most_free_devices_are_combined_first() -> None:
    """Of equal ones, the lowest is first."""
    places = {name: (place,) for name, place in zip(ORDER, (0, 1, 1, 2, 2, 2, 3, 3), strict=True)}
    assert sorted(narrow(free("xxxxxxxx"), ORDER, [], 5, places)) == sorted([free(".xxxxx.."), free("...xxxxx")])
    assert narrow(free("xxxxxx.."), ORDER, [], 5, places) == [free(".xxxxx..")]
    assert narrow(free("xxx...xx"), ORDER, [], 5, places) == [free("xxx...xx")]
    pairs = {name: (number // 2,) for number, name in enumerate(ORDER)}
    assert sorted(narrow(free("xxxxxxxx"), ORDER, [], 3, pairs)) == sorted(
        [free("xxxx...."), free("xx..xx.."), free("xx....xx")]
    )


def test_device_on_two_numa_nodes_requires_both() -> None:
    """It is chosen only if no single NUMA node is sufficient, or if both are included anyway."""
    places: dict[str, tuple[int, ...]] = {**HALVES, "b0": (0, 1), "b7": (0, 1)}
    assert sorted(narrow(free("xx.....x"), ORDER, [], 1, places)) == [free(".x......")]
    assert narrow(free("xx...x.x"), ORDER, [], 2, places) == [free("xx...x.x")]
    assert narrow(free("xx..x..."), ORDER, ["b7"], 1, places) == [free("xx..x...")]


def test_devices_without_a_numa_node_count_as_one_more_node() -> None:
    for places in ({"b0": (0,), "b1": (0,)}, {**dict.fromkeys(ORDER, ()), "b0": (0,), "b1": (0,)}):
        assert sorted(narrow(free("xx.xx..."), ORDER, [], 2, places)) == sorted([free("xx......"), free("...xx...")])
        assert narrow(free("xx.xx..."), ORDER, ["b7"], 1, places) == [free("...xx...")]
        assert narrow(free("xx.xx..."), ORDER, ["gone"], 1, places) == [free("...xx...")]
