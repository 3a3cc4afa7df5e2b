"""NUMA nodes of devices, from ranges of numbers in the configuration, and the choice of as few of them as possible.

A binder device belongs to no hardware. The ranges define on which NUMA node the operator wants a phone to run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aosp_plugin.binder.discovery.names import last_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NumaNodes: TypeAlias = "Mapping[str, tuple[int, ...]]"
"""NUMA nodes by device ID. Devices without one may be left out."""

LAST_NUMA_NODE = 63
"""The kubelet stores NUMA nodes in 64 bits (pkg/kubelet/cm/topologymanager/bitmask). No pod fits on a higher one."""

_NONE = -1
"""Stands for "no NUMA node"."""


class Range(NamedTuple):
    """The numbers from ``first`` to ``last`` are on one NUMA node."""

    first: int
    last: int
    numa_node: int


class NumaMap(NamedTuple):
    """NUMA nodes by number; see ``parse``."""

    ranges: tuple[Range, ...] = ()
    """Sorted, without overlaps."""

    def of(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the sorted NUMA nodes of the last numbers in ``names``. Empty if no range contains any of them."""
        numa_nodes = {self._of(number) for name in names if (number := last_number(name)) is not None}
        return tuple(sorted(numa_nodes - {_NONE}))

    def _of(self, number: int) -> int:
        index = bisect_right(self.ranges, number, key=lambda range_: range_.first) - 1
        if index < 0 or self.ranges[index].last < number:
            return _NONE
        return self.ranges[index].numa_node


def parse(ranges: Mapping[str, int]) -> NumaMap:
    """Parse ranges of numbers ("0-179", or a single "7") and their NUMA nodes.

    Raises ValueError if a range ends before it begins, or if two of them overlap.
    """
    parsed = []
    for text, numa_node in ranges.items():
        first, _, last = text.partition("-")
        parsed.append(Range(int(first), int(last or first), numa_node))
    parsed.sort()
    if any(part.last < part.first for part in parsed):
        raise ValueError("a range ends before it begins")
    if any(upper.first <= lower.last for lower, upper in pairwise(parsed)):
        raise ValueError("two ranges overlap")
    return NumaMap(tuple(parsed))


def narrow(
    free: Sequence[int], order: Sequence[str], allocated: Iterable[str], count: int, numa_nodes: NumaNodes
) -> list[Sequence[int]]:
    """Restrict the free devices to as few NUMA nodes as have ``count`` of them.

    ``free`` has positions in ``order``. ``allocated`` are devices that the container has already; their NUMA nodes are
    included. Returns those of ``free`` that are left, for each choice of NUMA nodes that is equally good.

    All devices without a NUMA node count as one more node. A device on two NUMA nodes requires both. While no node
    suffices, the one that adds the most devices is included; that is optimal if each device is on one NUMA node.
    """
    places = [_place([numa_nodes.get(order[position], ())]) for position in free] if numa_nodes else []
    sizes = Counter(places)
    if len(sizes) <= 1:
        return [free]
    count = min(count, len(free))
    included = _place(numa_nodes.get(device, ()) for device in allocated)
    while True:
        choices = {included | place for place in sizes}
        available = {choice: sum(sizes[place] for place in sizes if place <= choice) for choice in choices}
        sufficient = [choice for choice, size in available.items() if size >= count]
        if sufficient:
            break
        included = min(available, key=lambda choice: (-available[choice], sorted(choice)))
    fewest = min(map(len, sufficient))
    return [
        [position for position, place in zip(free, places, strict=True) if place <= choice]
        for choice in sufficient
        if len(choice) == fewest
    ]


def _place(places: Iterable[tuple[int, ...]]) -> frozenset[int]:
    return frozenset(numa_node for place in places for numa_node in place or (_NONE,))
