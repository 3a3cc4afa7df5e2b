"""Which nodes belong together: the order in which free ones are preferred."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def prefer(order: Sequence[str], available: Iterable[str], must_include: Sequence[str], size: int) -> list[str]:
    """Choose ``size`` devices: ``must_include``, then the lowest run of neighbours that is long enough.

    ``order`` is every known device in natural order. Where no run is long enough, the lowest free ones are taken.
    Filling from below leaves the rest in one piece for the next container. Devices that are not known are not chosen;
    fewer than ``size`` are returned where fewer are free.

    Linear in the number of devices: a kubelet sends all that are free, in random order, and ``bytes.find`` looks for
    the run at the speed of C.
    """
    chosen = list(dict.fromkeys(must_include))
    missing = size - len(chosen)
    if missing <= 0:
        return chosen
    candidates = set(available).difference(chosen)
    free = bytes(map(candidates.__contains__, order))
    start = free.find(b"\x01" * missing)
    if start >= 0:
        return chosen + list(order[start : start + missing])
    lowest = (device for device, is_free in zip(order, free, strict=True) if is_free)
    return chosen + list(itertools.islice(lowest, missing))
