"""Preferred allocation: which of the free devices a container should get, on one NUMA node if possible.

A binder device belongs to no hardware. Ranges of numbers in the configuration define on which NUMA node the operator
wants a phone to run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from aosp_plugin.binder.devices.sets import last_number, replica_ids

NodesById: TypeAlias = "Mapping[str, tuple[int, ...]]"
"""NUMA nodes by device ID. Devices without one may be left out."""

LAST_NUMA_NODE = 63
"""The kubelet stores NUMA nodes in 64 bits (pkg/kubelet/cm/topologymanager/bitmask). No pod fits on a higher one."""


class Range(NamedTuple):
    """The numbers from ``first`` to ``last`` are on one NUMA node."""

    first: int
    last: int
    numa_node: int


class NumaMap(NamedTuple):
    """NUMA nodes by number; see ``parse_numa``."""

    ranges: tuple[Range, ...] = ()
    """Sorted, without overlaps."""

    def of(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the sorted NUMA nodes of the last numbers in ``names``. Empty if no range contains any of them."""
        numbers = [number for name in names if (number := last_number(name)) is not None]
        found = {each.numa_node for each in self.ranges for number in numbers if each.first <= number <= each.last}
        return tuple(sorted(found))


def parse_numa(ranges: Mapping[str, int]) -> NumaMap:
    """Parse ranges of numbers ("0-179", or a single "7") and their NUMA nodes.

    Raises ValueError if a range ends before it begins, or if two of them overlap.
    """
    parsed = []
    for text, numa_node in ranges.items():
        first, _, last = text.partition("-")
        parsed.append(Range(int(first), int(last or first), numa_node))
    parsed.sort()
    if any(each.last < each.first for each in parsed):
        raise ValueError("a range ends before it begins")
    if any(upper.first <= lower.last for lower, upper in pairwise(parsed)):
        raise ValueError("two ranges overlap")
    return NumaMap(tuple(parsed))


def prefer(
    order: Sequence[str],
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
    numa_nodes: NodesById | None = None,
) -> list[str]:
    """Choose ``size`` devices: ``must_include``, then the lowest sufficient run of consecutive free devices.

    ``order`` has all devices in natural order. If no run is long enough, the lowest free devices are chosen. Allocation
    from below leaves the rest contiguous for the next container. Unknown devices are not chosen. The result is shorter
    than ``size`` if too few devices are free. With ``numa_nodes``, the devices are on one of them if it has enough.

    Takes linear time: the kubelet sends all free devices in random order.
    """
    chosen = list(dict.fromkeys(must_include))
    missing = size - len(chosen)
    if missing <= 0:
        return chosen
    candidates = set(available).difference(chosen)
    free = [position for position, device in enumerate(order) if device in candidates]
    choices = _by_numa_node(free, order, chosen, missing, numa_nodes or {})
    _, positions = min(_lowest(choice, missing) for choice in choices)
    return chosen + [order[position] for position in positions]


def spread(
    devices: Sequence[str], count: int, available: Iterable[str], must_include: Sequence[str], size: int
) -> list[str]:
    """Choose ``size`` of the ``count`` replicas of each of ``devices``, in addition to ``must_include``.

    No device is chosen twice while there are others. Those with the fewest allocated replicas come first, lowest first.
    The kubelet offers those of one NUMA node alone, where its policy requires that.
    """
    chosen = list(dict.fromkeys(must_include))
    candidates, included = set(available).difference(chosen), set(chosen)
    replicas = [replica_ids(device, count) for device in devices]
    spare = [[replica for replica in ids if replica in candidates] for ids in replicas]
    own = [len(included.intersection(ids)) for ids in replicas]
    while len(chosen) < size and any(spare):
        free = (position for position, ids in enumerate(spare) if ids)
        position = min(free, key=lambda position: (own[position], -len(spare[position])))
        chosen.append(spare[position].pop(0))
        own[position] += 1
    return chosen


def _by_numa_node(
    free: Sequence[int], order: Sequence[str], allocated: Iterable[str], count: int, numa_nodes: NodesById
) -> list[Sequence[int]]:
    """Return the free devices of each NUMA node that has ``count`` of them; if none has, all as one choice.

    ``free`` has positions in ``order``. ``allocated`` are devices that the container has already; only their NUMA nodes
    are returned if one of them suffices. Devices without a NUMA node count as one more node, and so do those with
    several.
    """
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for position in free:
        groups[numa_nodes.get(order[position], ())].append(position)
    sufficient = {nodes: group for nodes, group in groups.items() if len(group) >= count}
    near = {numa_nodes.get(device, ()) for device in allocated}
    return [sufficient[nodes] for nodes in near if nodes in sufficient] or [*sufficient.values()] or [free]


def _lowest(free: Sequence[int], count: int) -> tuple[bool, Sequence[int]]:
    """Return the lowest run of ``count`` free positions with False; if there is none, the lowest ones with True."""
    for index in range(len(free) - count + 1):
        if free[index + count - 1] - free[index] == count - 1:
            return False, free[index : index + count]
    return True, free[:count]
