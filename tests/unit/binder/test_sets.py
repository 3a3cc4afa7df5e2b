"""Which free nodes are preferred: the lowest run of neighbours, else the lowest ones."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.sets import prefer


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
