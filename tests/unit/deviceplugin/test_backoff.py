"""Pauses between attempts to register."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.framework.timings import DEFAULT, delays

if TYPE_CHECKING:
    from collections.abc import Iterator


class Fixed(random.Random):
    """A random source that returns one end of every range."""

    def __init__(self, end: int) -> None:
        super().__init__(0)
        self._end = end
        self.ranges: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        """Return an end of the range."""
        self.ranges.append((a, b))
        return (a, b)[self._end]


def first(count: int, waits: Iterator[float]) -> list[float]:
    """Return the first pauses."""
    return list(itertools.islice(waits, count))


def drawn(seed: int) -> Iterator[float]:
    """Return pauses with a seeded source of randomness."""
    return delays(random.Random(seed), DEFAULT)  # noqa: S311 - no secret


def test_pauses_double_up_to_the_cap() -> None:
    assert first(12, delays(Fixed(1), DEFAULT)) == pytest.approx(
        [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15, 15]
    )


def test_each_pause_is_random_in_the_upper_half_of_its_range() -> None:
    """A short pause does not change the next range."""
    low = Fixed(0)
    assert first(9, delays(low, DEFAULT)) == pytest.approx([0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    assert set(low.ranges) == {(0.5, 1.0)}


def test_pauses_of_two_nodes_differ() -> None:
    assert first(5, drawn(1)) != first(5, drawn(2))
