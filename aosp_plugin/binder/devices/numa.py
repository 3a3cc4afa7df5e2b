"""Which NUMA node a device is on, by the ranges of numbers that the operator gave, and how few can serve a container.

A binder node has no place in the hardware of its own: the ranges say which phones are to run where. Which of the
devices of a NUMA node are taken is for ``sets`` to say.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import reduce
from itertools import compress, pairwise
from operator import or_
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NumaNodes: TypeAlias = "Mapping[str, tuple[int, ...]]"
"""The NUMA nodes of devices, by their IDs; one that has none may be left out."""

LAST_NUMA_NODE = 63
"""The kubelet keeps NUMA nodes in 64 bits (pkg/kubelet/cm/topologymanager/bitmask); one beyond fits no pod."""

_RANGE = re.compile(r"([0-9]+)-([0-9]+)|([0-9]+)")
_LAST_NUMBER = re.compile(r"[0-9]+(?=[^0-9]*\Z)")
_NOWHERE = -1
"""The place of devices that no range covers."""


class Range(NamedTuple):
    """The numbers from ``first`` to ``last`` are on one NUMA node."""

    first: int
    last: int
    numa_node: int


class NumaMap(NamedTuple):
    """Which numbers are on which NUMA node; ``parse`` makes it."""

    ranges: tuple[Range, ...] = ()
    """By their first numbers; none overlaps another."""

    def of(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the NUMA nodes, in order, of the last numbers in ``names``; empty where no range has any of them."""
        found = {self._of(int(number[0])) for name in names if (number := _LAST_NUMBER.search(name))}
        return tuple(sorted(found - {_NOWHERE}))

    def _of(self, number: int) -> int:
        below = bisect_right(self.ranges, number, key=lambda one: one.first)
        if not below or self.ranges[below - 1].last < number:
            return _NOWHERE
        return self.ranges[below - 1].numa_node


def parse(ranges: Mapping[str, int]) -> NumaMap:
    """Read ranges of numbers ("0-179", or a single "7") and their NUMA nodes.

    Raises ValueError, with a text for the operator, where one is none, or overlaps another.
    """
    read = sorted(_range(text, numa_node) for text, numa_node in ranges.items())
    for one, other in pairwise(read):
        if other.first <= one.last:
            raise ValueError(f"{_text(one)} and {_text(other)} overlap; a number is on one NUMA node")
    return NumaMap(tuple(read))


def _range(text: str, numa_node: int) -> Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a range of numbers, such as 0-179")
    first, last = int(match[1] or match[3]), int(match[2] or match[3])
    if last < first:
        raise ValueError(f"the range {text} ends before it begins")
    if not 0 <= numa_node <= LAST_NUMA_NODE:
        raise ValueError(f"the range {text} is on NUMA node {numa_node}; allowed: 0 to {LAST_NUMA_NODE}")
    return Range(first, last, numa_node)


def _text(one: Range) -> str:
    return f"{one.first}-{one.last}" if one.first < one.last else str(one.first)


def narrow(free: bytes, order: Sequence[str], near: Iterable[str], count: int, numa_nodes: NumaNodes) -> list[bytes]:
    """Leave those free devices over that are on as few NUMA nodes as have ``count`` of them, if so many are free.

    ``free`` has a 1 for each device of ``order`` that is free. ``near`` are devices that the container has: their
    NUMA nodes are among the few. Returns a choice for each NUMA node that does as well as the others: ``free`` with
    all other devices left out.

    Devices on no NUMA node make up one more, as nobody says where they are; one that is on two NUMA nodes needs
    both. Where no NUMA node has enough, the one that brings the most is added, until one more is enough: that gives
    the fewest wherever each device is on one NUMA node.
    """
    masks = _masks(free, [numa_nodes.get(device, ()) for device in order]) if numa_nodes else {}
    if len(masks) <= 1:
        return [free]
    sizes = {place: mask.count(1) for place, mask in masks.items()}
    count = min(count, sum(sizes.values()))
    reach = _reach(numa_nodes.get(device, ()) for device in near)
    while True:
        held = {step: sum(sizes[place] for place in sizes if place <= step) for step in {reach | to for to in sizes}}
        enough = [step for step, size in held.items() if size >= count]
        if enough:
            break
        reach = min(held, key=lambda step: (-held[step], sorted(step)))
    fewest = min(map(len, enough))
    return [_union(mask for place, mask in masks.items() if place <= step) for step in enough if len(step) == fewest]


def _masks(free: bytes, places: Sequence[tuple[int, ...]]) -> dict[frozenset[int], bytearray]:
    """Return ``free`` once for each place, with the devices of that place alone."""
    masks: dict[tuple[int, ...], bytearray] = {}
    for position, place in compress(enumerate(places), free):
        mask = masks.get(place)
        if mask is None:
            mask = masks[place] = bytearray(len(free))
        mask[position] = 1
    return {_reach([place]): mask for place, mask in masks.items()}


def _reach(places: Iterable[tuple[int, ...]]) -> frozenset[int]:
    return frozenset(numa_node for place in places for numa_node in place or (_NOWHERE,))


def _union(masks: Iterable[bytearray]) -> bytes:
    """Lay masks of one length over each other, as numbers: at the speed of C."""
    found = list(masks)
    return reduce(or_, (int.from_bytes(mask, "little") for mask in found)).to_bytes(len(found[0]), "little")
