"""How long to wait before the next try."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.framework.deviceplugin.backoff import CAP, FACTOR, FIRST, delays

if TYPE_CHECKING:
    from collections.abc import Iterator


class Fixed(random.Random):
    """Draws one end of every range."""

    def __init__(self, end: int) -> None:
        super().__init__(0)
        self._end = end
        self.ranges: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        """Return an end of the range."""
        self.ranges.append((a, b))
        return (a, b)[self._end]


def first(count: int, waits: Iterator[float]) -> list[float]:
    """Return the first waits."""
    return list(itertools.islice(waits, count))


def drawn(seed: int) -> Iterator[float]:
    """Return waits of one source of randomness."""
    return delays(random.Random(seed))  # noqa: S311 - no secret


def test_the_first_try_again_comes_at_once() -> None:
    """Most failures are over by then."""
    assert next(drawn(1)) == 0.0


def test_waits_double_up_to_the_cap() -> None:
    """Undrawn, they are 0.1, 0.2, 0.4 and so on, and stay at 15 for ever."""
    assert first(12, delays(Fixed(1))) == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15, 15])
    assert (FIRST, FACTOR, CAP) == (0.1, 2.0, 15.0)


def test_each_wait_is_drawn_from_the_upper_half_of_its_range() -> None:
    """A wait is never shorter than half of what it may be."""
    low = Fixed(0)
    assert first(4, delays(low)) == pytest.approx([0, 0.05, 0.1, 0.2])
    assert set(low.ranges) == {(0.5, 1.0)}


def test_two_nodes_do_not_stay_in_step() -> None:
    """Different sources of randomness give different waits, and the same one the same."""
    assert first(5, drawn(1)) != first(5, drawn(2))
    assert first(5, drawn(1)) == first(5, drawn(1))


def test_a_drawn_wait_does_not_change_the_next_range() -> None:
    """Being lucky once does not slow the growth down."""
    assert first(9, delays(Fixed(0)))[-1] == pytest.approx(12.8 / 2)
