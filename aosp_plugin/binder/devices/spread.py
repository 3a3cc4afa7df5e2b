"""The spread of a few devices of the host, such as GPUs, over the devices of a resource. Functions of their arguments.

Device number N has the known spread device N mod K, where K is the number of known ones, in natural order. A lost one
stays known: its devices are unhealthy, and no other device moves. See ``known`` for when the devices are spread again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.names import natural_sort

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Spread(NamedTuple):
    """The spread devices as of one scan. Immutable: shared by all threads."""

    known: tuple[str, ...] = ()
    """Paths of the host in natural order, including lost ones."""
    lost: frozenset[str] = frozenset()
    """Those of them that do not exist now."""
    numa_nodes: Mapping[str, int] = {}
    """The NUMA nodes of those that have one, according to the kernel."""

    def device(self, number: int) -> str:
        """Return the path of the spread device of device ``number``; empty if none is known."""
        return self.known[number % len(self.known)] if self.known else ""

    def numa_node(self, number: int) -> tuple[int, ...]:
        """Return the NUMA node of the spread device of device ``number``; empty if it has none."""
        numa_node = self.numa_nodes.get(self.device(number))
        return () if numa_node is None else (numa_node,)


def known(before: Collection[str], present: Collection[str], fixed: Collection[str]) -> tuple[str, ...]:
    """Return the known spread devices in natural order: those found ``before`` or now, and those without wildcards.

    ``before`` is empty after a restart and after SIGHUP, so that lost ones are forgotten and the devices spread again.
    """
    return tuple(natural_sort([*{*before, *present, *fixed}]))
