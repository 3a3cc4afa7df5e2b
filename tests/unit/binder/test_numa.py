"""Ranges of numbers and their NUMA nodes, and how few of these have enough for a container."""

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


def test_a_range_has_both_of_its_ends() -> None:
    """What is below the first, above the last and between two belongs to no NUMA node."""
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


def test_ranges_may_be_written_in_any_order() -> None:
    """They are sorted by their numbers, not by the letters of their text."""
    assert parse({"100-109": 1, "20-29": 0, "3": 2}).ranges == (Range(3, 3, 2), Range(20, 29, 0), Range(100, 109, 1))
    assert parse({}) == NumaMap()


def test_two_ranges_may_be_on_one_numa_node() -> None:
    """Phones of one socket need not be numbered in a row."""
    numa_map = parse({"0-1": 0, "2-3": 1, "4-5": 0})
    assert [of(numa_map, number) for number in range(7)] == [(0,), (0,), (1,), (1,), (0,), (0,), ()]


@pytest.mark.parametrize(
    ("ranges", "why"),
    [
        ({"0-10": 0, "10-20": 1}, "0-10 and 10-20 overlap; a number is on one NUMA node"),
        ({"5-6": 0, "0-100": 0}, "0-100 and 5-6 overlap"),
        ({"0-9": 0, "7": 1}, "0-9 and 7 overlap"),
        ({"7": 0, "7-8": 1}, "7 and 7-8 overlap"),
        ({"7": 0, "07": 0}, "7 and 7 overlap"),
        ({"10-20": 1, "30-40": 0, "0-10": 2}, "0-10 and 10-20 overlap"),
        ({"9-8": 0}, "the range 9-8 ends before it begins"),
        ({"": 0}, "'' is not a range of numbers, such as 0-179"),
        ({"-5": 0}, "'-5' is not a range"),
        ({"5-": 0}, "'5-' is not a range"),
        ({"0 - 9": 0}, "'0 - 9' is not a range"),
        ({"0-9\n": 0}, "is not a range"),
        ({"0-9-10": 0}, "'0-9-10' is not a range"),
        ({"a": 0}, "'a' is not a range"),
        ({"²": 0}, "'²' is not a range"),
        ({"0-9": -1}, "the range 0-9 is on NUMA node -1; allowed: 0 to 63"),
        ({"0-9": 64}, "the range 0-9 is on NUMA node 64; allowed: 0 to 63"),
    ],
)
def test_a_bad_map_is_refused_with_what_is_wrong(ranges: dict[str, int], why: str) -> None:
    """The operator reads which range it is."""
    with pytest.raises(ValueError, match=why.replace("²", ".")):
        parse(ranges)


def test_the_last_numa_node_that_a_kubelet_knows_is_allowed() -> None:
    """It keeps them in 64 bits."""
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
def test_the_last_number_in_a_name_counts(name: str, numa_nodes: tuple[int, ...]) -> None:
    """Wherever in the name it stands; those before it don't."""
    assert parse({"0-9": 0, "10-19": 1}).of([name]) == numa_nodes


def test_a_device_is_on_the_numa_nodes_of_all_its_nodes() -> None:
    """In order, each once; nodes that no range covers add none."""
    numa_map = parse({"0-179": 2, "180-299": 0, "300-359": 1})
    assert numa_map.of(["b1", "b121", "b241"]) == (0, 2)
    assert numa_map.of(["b310", "b190", "b70"]) == (0, 1, 2)
    assert numa_map.of(["b1", "b121"]) == (2,)
    assert numa_map.of(["b1", "b999"]) == (2,)
    assert numa_map.of(["b999"]) == numa_map.of([]) == NumaMap().of(["b1"]) == ()


@given(st.dictionaries(st.integers(0, 30), st.integers(0, 3), max_size=12))
@settings(derandomize=True, deadline=None)
def test_every_number_is_where_the_map_says(places: dict[int, int]) -> None:
    """Written as single numbers, or joined into ranges."""
    ranges: list[Range] = []
    for number in sorted(places):
        if ranges and ranges[-1].last == number - 1 and ranges[-1].numa_node == places[number]:
            ranges[-1] = ranges[-1]._replace(last=number)
        else:
            ranges.append(Range(number, number, places[number]))
    single = parse({str(number): place for number, place in places.items()})
    joined = parse({f"{one.first}-{one.last}": one.numa_node for one in reversed(ranges)})
    for number in range(32):
        expected = (places[number],) if number in places else ()
        assert of(single, number) == of(joined, number) == expected


def free(text: str) -> bytes:
    """Return a mask: a 1 for each x."""
    return bytes(one == "x" for one in text)


def test_without_numa_nodes_every_free_device_is_left() -> None:
    """With those of one NUMA node alone, it is the same."""
    assert narrow(free("x.xxx..x"), ORDER, [], 3, {}) == [free("x.xxx..x")]
    assert narrow(free("x.xx...."), ORDER, [], 2, HALVES) == [free("x.xx....")]
    assert narrow(free("........"), ORDER, [], 2, HALVES) == [free("........")]


def test_each_numa_node_that_has_enough_is_a_choice() -> None:
    """Those that have too few are none."""
    assert sorted(narrow(free("x.xxxx.."), ORDER, [], 2, HALVES)) == sorted([free("x.xx...."), free("....xx..")])
    assert narrow(free("x.xxxx.."), ORDER, [], 3, HALVES) == [free("x.xx....")]


def test_where_none_has_enough_they_are_joined() -> None:
    """As is all that is free where that is too little."""
    assert narrow(free("x.xxxx.."), ORDER, [], 5, HALVES) == [free("x.xxxx..")]
    assert narrow(free("x.xxxx.."), ORDER, [], 9, HALVES) == [free("x.xxxx..")]


def test_the_numa_nodes_of_what_the_container_has_are_among_the_choice() -> None:
    """Enough there: nothing else is left over; too few: all of them and another NUMA node's."""
    assert narrow(free("x.xxxx.."), ORDER, ["b7"], 2, HALVES) == [free("....xx..")]
    assert narrow(free("x.xxxx.."), ORDER, ["b7"], 3, HALVES) == [free("x.xxxx..")]
    assert narrow(free("x.xxxx.."), ORDER, ["b1", "b7"], 1, HALVES) == [free("x.xxxx..")]
    quarters = {name: (number // 2,) for number, name in enumerate(ORDER)}
    assert sorted(narrow(free("xx.xxx.."), ORDER, ["b6"], 2, quarters)) == sorted([free("xx......"), free("....xx..")])


def test_the_fullest_numa_nodes_are_joined_first() -> None:
    """So that they are few; of equally full ones the lowest."""
    places = {name: (place,) for name, place in zip(ORDER, (0, 1, 1, 2, 2, 2, 3, 3), strict=True)}
    assert sorted(narrow(free("xxxxxxxx"), ORDER, [], 5, places)) == sorted([free(".xxxxx.."), free("...xxxxx")])
    assert narrow(free("xxxxxx.."), ORDER, [], 5, places) == [free(".xxxxx..")]
    assert narrow(free("xxx...xx"), ORDER, [], 5, places) == [free("xxx...xx")]
    pairs = {name: (number // 2,) for number, name in enumerate(ORDER)}
    assert sorted(narrow(free("xxxxxxxx"), ORDER, [], 3, pairs)) == sorted(
        [free("xxxx...."), free("xx..xx.."), free("xx....xx")]
    )


def test_a_device_on_two_numa_nodes_needs_both() -> None:
    """It is no choice while one NUMA node has enough, and comes for nothing where both are taken."""
    places: dict[str, tuple[int, ...]] = {**HALVES, "b0": (0, 1), "b7": (0, 1)}
    assert sorted(narrow(free("xx.....x"), ORDER, [], 1, places)) == [free(".x......")]
    assert narrow(free("xx...x.x"), ORDER, [], 2, places) == [free("xx...x.x")]
    assert narrow(free("xx..x..."), ORDER, ["b7"], 1, places) == [free("xx..x...")]


def test_devices_on_no_numa_node_are_as_on_one_more() -> None:
    """Whether the map says so, or does not know them."""
    for places in ({"b0": (0,), "b1": (0,)}, {**dict.fromkeys(ORDER, ()), "b0": (0,), "b1": (0,)}):
        assert sorted(narrow(free("xx.xx..."), ORDER, [], 2, places)) == sorted([free("xx......"), free("...xx...")])
        assert narrow(free("xx.xx..."), ORDER, ["b7"], 1, places) == [free("...xx...")]
        assert narrow(free("xx.xx..."), ORDER, ["gone"], 1, places) == [free("...xx...")]
