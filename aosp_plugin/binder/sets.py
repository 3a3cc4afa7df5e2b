"""Which nodes belong together: the order in which free ones are preferred."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def prefer(
    order: Sequence[str],
    positions: Mapping[str, int],
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
) -> list[str]:
    """Choose ``size`` devices: ``must_include``, then the lowest run of neighbours that is long enough.

    ``order`` is every known device in natural order and ``positions`` its inverse. Where no run is long enough,
    the lowest free ones are taken. Filling from below leaves the rest in one piece for the next container.
    Devices that are not known are not chosen; fewer than ``size`` are returned where fewer are free.

    Linear in the number of free devices: a kubelet sends all of them, in random order. ``bytes.find`` looks for
    the run at the speed of C.
    """
    chosen = list(dict.fromkeys(must_include))
    missing = size - len(chosen)
    if missing <= 0:
        return chosen
    free = bytearray(len(order))
    for position in map(positions.get, available):
        if position is not None:
            free[position] = 1
    for device in chosen:
        if device in positions:
            free[positions[device]] = 0
    start = free.find(b"\x01" * missing)
    if start >= 0:
        return chosen + list(order[start : start + missing])
    while missing and (start := free.find(1, start + 1)) >= 0:
        chosen.append(order[start])
        missing -= 1
    return chosen
