"""How long to wait before the next try."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

FIRST, FACTOR, CAP = 0.1, 2.0, 15.0
"""Seconds, factor, seconds. A new kubelet.sock ends a wait at once, so the cap is for a kubelet that refuses."""


def delays(rng: random.Random) -> Iterator[float]:
    """Yield seconds to wait, for ever: none before the first try again, then longer ones up to a cap.

    Each is drawn from the upper half of its range, so that a thousand nodes whose kubelets restart together do
    not stay in step.
    """
    yield 0.0
    delay = FIRST
    while True:
        yield delay * rng.uniform(0.5, 1.0)
        delay = min(delay * FACTOR, CAP)
