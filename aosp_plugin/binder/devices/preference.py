"""Which of the free devices a container should get: functions of names.

How nodes make devices is ``sets``' matter, on which NUMA node a device is, ``numa``'s.
"""

from __future__ import annotations

from itertools import compress, islice
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
    """Choose ``size`` devices: ``must_include``, then the lowest run of neighbours that is long enough.

    ``order`` is every known device in natural order. Where no run is long enough, the lowest free ones are taken.
    Filling from below leaves the rest in one piece for the next container. Devices that are not known are not chosen;
    fewer than ``size`` are returned where fewer are free. With ``numa_nodes``, they are on few (``numa.narrow``).

    Linear in the number of devices: a kubelet sends all that are free, in random order, and ``bytes.find`` looks for
    the run at the speed of C.
    """
    chosen = list(dict.fromkeys(must_include))
    missing = size - len(chosen)
    if missing <= 0:
        return chosen
    candidates = set(available).difference(chosen)
    free = bytes(map(candidates.__contains__, order))
    pools = numa.narrow(free, order, chosen, missing, numa_nodes or {})
    _, picks = min(_lowest(pool, missing) for pool in pools)
    return chosen + [order[pick] for pick in picks]


def _lowest(free: bytes, count: int) -> tuple[bool, list[int]]:
    """Find the lowest run of ``count`` free positions, else the lowest ones; and say whether they are scattered."""
    # Compared first: a request may name any number up to 2^31, and that many bytes would be made to look for.
    start = free.find(b"\x01" * count) if count <= len(free) else -1
    if start >= 0:
        return False, list(range(start, start + count))
    return True, list(islice(compress(range(len(free)), free), count))


def spread(
    devices: Sequence[str],
    count: int,
    available: Iterable[str],
    must_include: Sequence[str],
    size: int,
    numa_nodes: NumaNodes | None = None,
) -> list[str]:
    """Choose ``size`` of the ``count`` replicas of each of ``devices``; otherwise as ``prefer``.

    No device comes a second time while there are others; that done, they are on as few NUMA nodes as possible; that
    done, those come first of which the fewest replicas are taken, the lowest before others.
    """
    chosen = list(dict.fromkeys(must_include))
    offered, mine = set(available).difference(chosen), set(chosen)
    replicas = [replica_ids(device, count) for device in devices]
    spare = [[replica for replica in ids if replica in offered] for ids in replicas]
    own = [len(mine.intersection(ids)) for ids in replicas]
    while len(chosen) < size and any(spare):
        fewest, missing = min(compress(own, spare)), size - len(chosen)
        free = bytes(bool(ids) and held == fewest for ids, held in zip(spare, own, strict=True))
        taken = [-len(ids) for ids in spare]  # all have the same count: this compares like the number taken
        pools = numa.narrow(free, devices, list(compress(devices, own)), missing, numa_nodes or {})
        choices = [sorted(compress(range(len(pool)), pool), key=taken.__getitem__)[:missing] for pool in pools]
        for pick in min(choices, key=lambda picks: ([taken[pick] for pick in picks], picks)):
            chosen.append(spare[pick].pop(0))
            own[pick] += 1
    return chosen
