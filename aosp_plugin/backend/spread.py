"""The spread of a few devices of the host, such as GPUs, over the devices of a resource.

Of each item of ``spread_devices``, device number N has the known spread device N mod K, where K is the number of known
spread devices, in natural order. Items with devices of the same hardware, such as the cards and the render nodes of
GPUs, are ``paired``. A spread device that is lost stays known: its devices are unhealthy, and no other device moves. A
restart and SIGHUP forget lost ones.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from aosp_plugin.binder.devices.sets import natural_sort
from aosp_plugin.config.host_devices import SpreadDevice


class Selected(NamedTuple):
    """A device of the host that a container gets by the number of its device."""

    path: str
    container_path: str
    variable: str = ""
    """The variable of the container with the container path; empty if there is none."""


class SpreadItem(NamedTuple):
    """An item of ``spread_devices`` as of one scan. Immutable: shared by all threads."""

    device: SpreadDevice
    known: Mapping[str, str] = {}
    """The hardware of each known device by its path, lost ones included; empty if it is unknown."""
    paths: tuple[str, ...] = ()
    """The paths in use, in the order of the numbers of the devices that have them."""

    def selected(self, number: int) -> Selected:
        """Return the spread device of device ``number``. At least one must be in use."""
        path = self.paths[number % len(self.paths)]
        return Selected(path, self.device.container_path or path, self.device.env)


class Spread(NamedTuple):
    """The spread devices as of one scan. Immutable: shared by all threads."""

    items: tuple[SpreadItem, ...] = ()
    """The items with a device in use."""
    lost: frozenset[str] = frozenset()
    """The paths in use that do not exist now."""
    numa_nodes: Mapping[str, int] = {}
    """The NUMA nodes of spread devices by path, according to the kernel; absent without one."""

    @property
    def paths(self) -> list[str]:
        """The paths in use."""
        return [path for item in self.items for path in item.paths]

    def of(self, number: int) -> list[Selected]:
        """Return the spread devices of device ``number``, one of each item."""
        return [item.selected(number) for item in self.items]

    def limits(self, number: int) -> dict[str, int]:
        """Return the ``per_device`` of the spread devices of device ``number`` by path, if they have one."""
        return {
            item.selected(number).path: item.device.per_device
            for item in self.items
            if item.device.per_device is not None
        }

    def numa_node(self, number: int) -> tuple[int, ...]:
        """Return the NUMA node of the first spread device of device ``number`` that has one; empty if none has."""
        return next(((self.numa_nodes[path],) for path, *_ in self.of(number) if path in self.numa_nodes), ())


def paired(known: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Return the devices in use of each item of ``spread_devices``, in the order of the numbers that have them.

    ``known`` has the hardware of the devices of each item by path, empty if it is unknown. Items that share hardware
    use the same number of devices, so that the same device number gets devices of the same hardware. Their order is the
    natural order of the first such item. Hardware without a device in every such item is left out: a BMC has a card and
    no render node, for example, and no container gets its card together with another GPU.
    """
    keyed = [dict(_keyed(paths)) for paths in known]
    used: list[tuple[str, ...]] = [()] * len(keyed)
    for together in _connected([{hardware for hardware in paths.values() if hardware} for paths in known]):
        first, *others = [keyed[item] for item in together]
        common = [key for key in first if all(key in other for other in others)]
        for item in together:
            used[item] = tuple(keyed[item][key] for key in common)
    return used


def _connected(hardware: Sequence[set[str]]) -> list[list[int]]:
    """Return the positions of the items that share hardware, directly or through others, in ascending order."""
    groups: list[tuple[set[str], list[int]]] = []
    for item, own in enumerate(hardware):
        sharing = [group for group in groups if not own.isdisjoint(group[0])]
        groups = [group for group in groups if own.isdisjoint(group[0])]
        items = sorted([item, *(each for _, members in sharing for each in members)])
        groups.append((own.union(*(shared for shared, _ in sharing)), items))
    return [items for _, items in groups]


def _keyed(paths: Mapping[str, str]) -> Iterator[tuple[tuple[str, int | str], str]]:
    """Yield the devices of an item in natural order, each with its hardware and its position on that hardware.

    A device of unknown hardware has its path in place of the position.
    """
    counts = Counter[str]()
    for path in natural_sort([*paths]):
        hardware = paths[path]
        yield (hardware, counts[hardware] if hardware else path), path
        counts[hardware] += 1
