"""Preferred allocation: which of the free devices a container should get. Functions of device IDs.

Containers get the lowest free devices, so a few of these decide most requests. With a ``Search``, they are read first.
"""

from __future__ import annotations

from itertools import compress, groupby, islice, takewhile
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices import numa
from aosp_plugin.binder.devices.sets import replica_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from aosp_plugin.binder.devices.numa import NumaNodes

    Search: TypeAlias = Callable[[str, int], set[str]]
    """Returns the free devices whose IDs start with a prefix and have this number of bytes. Each call reads the whole
    request once, which takes 0.1 ms for 10,000 free devices."""

SEARCHES = 6
"""How often a request is searched before all of it is decoded, which takes as long as 20 searches."""

PART = 1024
"""Devices that are checked together when all of the request is decoded."""

COMMON = 2
"""Characters at the end in which the IDs differ that one search finds: ``aosp_binder100`` to ``aosp_binder199``."""


def prefer(
    order: Sequence[str],
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
    numa_nodes: NumaNodes | None = None,
    search: Search | None = None,
) -> list[str]:
    """Choose ``size`` devices: ``must_include``, then the lowest sufficient run of consecutive free devices.

    ``order`` has all devices in natural order. If no run is long enough, the lowest free devices are chosen. Allocation
    from below leaves the rest contiguous for the next container. Unknown devices are not chosen. The result is shorter
    than ``size`` if too few devices are free. With ``numa_nodes``, the devices are on few of them (``numa.narrow``).

    Takes linear time: the kubelet sends all free devices in random order. ``search`` finds those of ``available``.
    """
    chosen = list(dict.fromkeys(must_include))
    missing = size - len(chosen)
    if missing <= 0:
        return chosen
    # A run on a single NUMA node is the best choice, unless the container already has devices on one: no choice has
    # fewer nodes, and all other runs are higher.
    near = bool(chosen and numa_nodes)
    free, start = bytearray(), 0
    for mask in _masks(order, available, chosen, search):
        free += mask
        while not near and missing <= len(free) and (start := free.find(b"\x01" * missing, start)) >= 0:
            run = order[start : start + missing]
            offset = _next_run(run, numa_nodes or {})
            if not offset:
                return [*chosen, *run]
            start += offset
        start = max(start, len(free) - missing + 1, 0)
    masks = numa.narrow(bytes(free), order, chosen, missing, numa_nodes or {})
    _, positions = min(_lowest(mask, missing) for mask in masks)
    return chosen + [order[position] for position in positions]


def spread(
    devices: Sequence[str],
    count: int,
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
    numa_nodes: NumaNodes | None = None,
    search: Search | None = None,
) -> list[str]:
    """Choose ``size`` of the ``count`` replicas of each of ``devices``; otherwise as ``prefer``.

    In order of precedence: no device is chosen twice while there are others, the devices are on few NUMA nodes, and
    those with the fewest allocated replicas come first, lowest first.
    """
    chosen = list(dict.fromkeys(must_include))
    if search and not chosen and (unused := _unused(devices, count, search, size, numa_nodes)) is not None:
        return unused
    candidates, included = set(available).difference(chosen), set(chosen)
    replicas = [replica_ids(device, count) for device in devices]
    spare = [[replica for replica in ids if replica in candidates] for ids in replicas]
    own = [len(included.intersection(ids)) for ids in replicas]
    while len(chosen) < size and any(spare):
        fewest, missing = min(compress(own, spare)), size - len(chosen)
        free = bytes(bool(ids) and held == fewest for ids, held in zip(spare, own, strict=True))
        allocated = [-len(ids) for ids in spare]  # the number of allocated replicas, up to the constant ``count``
        masks = numa.narrow(free, devices, list(compress(devices, own)), missing, numa_nodes or {})
        choices = [sorted(compress(range(len(mask)), mask), key=allocated.__getitem__)[:missing] for mask in masks]
        for position in min(choices, key=lambda picks: ([allocated[pick] for pick in picks], picks)):
            chosen.append(spare[position].pop(0))
            own[position] += 1
    return chosen


def _masks(
    order: Sequence[str], available: Iterable[str], chosen: Sequence[str], search: Search | None
) -> Iterator[bytes]:
    """Yield a 1 for each device of ``order`` that is free and not chosen, and otherwise a 0, in parts.

    The first parts are found by ``search``, the others when all of ``available`` is decoded.
    """
    position = 0
    if search:
        for (length, prefix), group in islice(groupby(order, _searched), SEARCHES):
            mask = bytes(map(search(prefix, length).difference(chosen).__contains__, group))
            position += len(mask)
            yield mask
    if position < len(order):
        candidates = set(available)
        candidates.difference_update(chosen)
        for first in range(position, len(order), PART):
            yield bytes(map(candidates.__contains__, order[first : first + PART]))


def _unused(
    devices: Sequence[str], count: int, search: Search, size: int, numa_nodes: NumaNodes | None
) -> list[str] | None:
    """Return what ``spread`` chooses for a new container, or None if the lowest devices do not decide that.

    They do if enough of them have no allocated replica, on a single NUMA node.
    """
    unused: list[str] = []
    searches = 0
    for device in takewhile(lambda _: len(unused) < size, devices):
        replicas = replica_ids(device, count)
        lengths = {len(replica.encode()) for replica in replicas}
        searches += len(lengths)
        if searches > SEARCHES:
            return None
        if set().union(*(search(device, length) for length in lengths)).issuperset(replicas):
            unused.append(device)
    if len(unused) < size or _next_run(unused, numa_nodes or {}):
        return None
    return [replica_ids(device, count)[0] for device in unused]


def _searched(device: str) -> tuple[int, str]:
    """Return the length in bytes and the prefix by which one search finds a device and those beside it."""
    return len(device.encode()), device[:-COMMON]


def _next_run(devices: Sequence[str], numa_nodes: NumaNodes) -> int:
    """Return 0 if these devices are on the same single NUMA node, or all on none.

    Otherwise, return the position from which on they might be part of another list that is.
    """
    places = [numa_nodes.get(device, ()) for device in devices] if numa_nodes else []
    last = len(places)
    while last and places[last - 1] == places[-1]:
        last -= 1
    return len(places) if not last and places and len(places[0]) > 1 else last


def _lowest(free: bytes, count: int) -> tuple[bool, list[int]]:
    """Return the lowest run of ``count`` free positions with False; if there is none, the lowest ones with True."""
    # The comparison comes first, because a request may have any count up to 2^31, which would allocate as many bytes.
    start = free.find(b"\x01" * count) if count <= len(free) else -1
    if start >= 0:
        return False, list(range(start, start + count))
    return True, list(islice(compress(range(len(free)), free), count))
