"""Pauses between attempts.

Each is random in the upper half of its range: when a kubelet or an API server ends, many nodes notice at the same time,
and should not try again at the same time.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.framework.timings import Timings

FIRST, FACTOR = 0.1, 2.0
"""Seconds, and a factor."""


def delays(rng: random.Random, timings: Timings) -> Iterator[float]:
    """Yield pauses in seconds without end: 0 before the first retry, then exponentially longer ones up to a cap."""
    yield 0.0
    backoff = Backoff(rng, first=timings.first_pause, cap=timings.longest_pause)
    while True:
        yield backoff.pause()


class Backoff:
    """The pauses after failures, one after another: exponentially longer ones up to a cap."""

    def __init__(self, rng: random.Random | None = None, *, first: float | None = None, cap: float = 30.0) -> None:
        """``first`` and ``cap`` are the shortest and the longest pause, in seconds."""
        self._rng = rng or random.Random()  # noqa: S311 - spreads the load
        self._first = self._next = FIRST if first is None else first
        self._cap = cap

    def succeeded(self) -> None:
        """Begin with the shortest pause again."""
        self._next = self._first

    def pause(self, asked: float | None = None) -> float:
        """Return the seconds before the next attempt: at least what a server has ``asked`` for (Retry-After)."""
        pause = self._next * self._rng.uniform(0.5, 1.0)
        self._next = min(self._next * FACTOR, self._cap)
        return pause if asked is None else max(pause, asked * self._rng.uniform(1.0, 1.2))
