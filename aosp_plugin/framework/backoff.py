"""Pauses between attempts to register."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

FIRST, FACTOR, CAP = 0.1, 2.0, 15.0
"""Seconds, factor, seconds. A new kubelet.sock ends a pause at once, so the cap is for a kubelet that rejects the
plugin."""


def delays(rng: random.Random) -> Iterator[float]:
    """Yield pauses in seconds without end: 0 before the first retry, then exponentially longer ones up to a cap.

    Each is random in the upper half of its range, so that a thousand nodes whose kubelets restart at the same time do
    not retry at the same time.
    """
    yield 0.0
    delay = FIRST
    while True:
        yield delay * rng.uniform(0.5, 1.0)
        delay = min(delay * FACTOR, CAP)
