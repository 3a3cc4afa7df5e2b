"""Preferred allocation: which of the free devices a container should get. Functions of device IDs."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices import numa
from aosp_plugin.binder.devices.sets import replica_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aosp_plugin.binder.devices.numa import NumaNodes


def prefer(
    order: Sequence[str],
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
    numa_nodes: NumaNodes | None = None,
) -> list[str]:
    """Choose ``size`` devices: ``must_include``, then the lowest sufficient run of consecutive free devices.

    ``order`` has all devices in natural order. If no run is long enough, the lowest free devices are chosen. Allocation
    from below leaves the rest contiguous for the next container. Unknown devices are not chosen. The result is shorter
    than ``size`` if too few devices are free. With ``numa_nodes``, the devices are on few of them (``numa.narrow``).

    Takes linear time: the kubelet sends all free devices in random order.
    """
    chosen = list(dict.fromkeys(must_include))
    missing = size - len(chosen)
    if missing <= 0:
        return chosen
    candidates = set(available).difference(chosen)
    free = [position for position, device in enumerate(order) if device in candidates]
    choices = numa.narrow(free, order, chosen, missing, numa_nodes or {})
    _, positions = min(_lowest(choice, missing) for choice in choices)
    return chosen + [order[position] for position in positions]


def spread(
    devices: Sequence[str],
    count: int,
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
    numa_nodes: NumaNodes | None = None,
) -> list[str]:
    """Choose ``size`` of the ``count`` replicas of each of ``devices``; otherwise as ``prefer``.

    In order of precedence: no device is chosen twice while there are others, the devices are on few NUMA nodes, and
    those with the fewest allocated replicas come first, lowest first.
    """
    chosen = list(dict.fromkeys(must_include))
    candidates, included = set(available).difference(chosen), set(chosen)
    replicas = [replica_ids(device, count) for device in devices]
    spare = [[replica for replica in ids if replica in candidates] for ids in replicas]
    own = [len(included.intersection(ids)) for ids in replicas]
    while len(chosen) < size and any(spare):
        fewest, missing = min(compress(own, spare)), size - len(chosen)
        free = [position for position, ids in enumerate(spare) if ids and own[position] == fewest]
        allocated = [-len(ids) for ids in spare]  # the number of allocated replicas, up to the constant ``count``
        narrowed = numa.narrow(free, devices, list(compress(devices, own)), missing, numa_nodes or {})
        choices = [sorted(choice, key=allocated.__getitem__)[:missing] for choice in narrowed]
        for position in min(choices, key=lambda picks: ([allocated[pick] for pick in picks], picks)):
            chosen.append(spare[position].pop(0))
            own[position] += 1
    return chosen


def _lowest(free: Sequence[int], count: int) -> tuple[bool, Sequence[int]]:
    """Return the lowest run of ``count`` free positions with False; if there is none, the lowest ones with True."""
    for index in range(len(free) - count + 1):
        if free[index + count - 1] - free[index] == count - 1:
            return False, free[index : index + count]
    return True, free[:count]
