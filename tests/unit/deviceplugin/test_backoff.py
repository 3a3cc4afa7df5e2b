"""Pauses between attempts to register."""

from __future__ import annotations

import random

import pytest

from aosp_plugin.framework.timings import Backoff


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


def pauses(count: int, rng: random.Random) -> list[float]:
    """Return the first pauses of a registration."""
    backoff = Backoff(rng, first=0.1, cap=15.0)
    return [backoff.pause() for _ in range(count)]


def test_pauses_double_up_to_the_cap() -> None:
    assert pauses(11, Fixed(1)) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15, 15])


def test_each_pause_is_random_in_the_upper_half_of_its_range() -> None:
    """A short pause does not change the next range."""
    low = Fixed(0)
    assert pauses(8, low) == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    assert set(low.ranges) == {(0.5, 1.0)}


def test_pauses_of_two_nodes_differ() -> None:
    assert pauses(5, random.Random(1)) != pauses(5, random.Random(2))  # noqa: S311 - no secrets
