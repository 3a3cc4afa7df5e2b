"""Pauses between attempts to register."""

from __future__ import annotations

import random

from aosp_plugin.framework.clock import Backoff


def test_pauses_double_up_to_the_cap_and_are_random_in_the_upper_half() -> None:
    """A short pause does not change the next range."""
    backoff = Backoff(random.Random(1), first=0.1, cap=15.0)  # noqa: S311 - no secrets
    other = Backoff(random.Random(2), first=0.1, cap=15.0)  # noqa: S311
    ranges = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15, 15]
    pauses = [backoff.pause() for _ in ranges]
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(pauses, ranges, strict=True))
    assert len(set(pauses)) == len(pauses)
    assert pauses != [other.pause() for _ in ranges]
