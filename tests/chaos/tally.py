"""Counts of faults, and the time until all invariants held again."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.chaos.tables import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.world import World


@dataclass
class Tally:
    """The counts of all seeds of a run."""

    seeds: list[int] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    """The recovery time of each step, in seconds."""
    by_fault: dict[str, list[float]] = field(default_factory=dict)
    """The recovery times of the steps with each fault, in seconds."""
    admitted: int = 0
    refused: int = 0
    unhealthy_refused: int = 0
    starts: int = 0
    descriptors: int = 0
    threads: int = 0
    resident: float = 0.0

    @property
    def faults(self) -> int:
        """The number of faults."""
        return sum(map(len, self.by_fault.values()))

    def settled(self, faults: Sequence[str], seconds: float) -> None:
        """Record a step."""
        self.steps.append(seconds)
        for name in faults:
            self.by_fault.setdefault(name, []).append(seconds)

    def ended(self, seed: int, world: World) -> None:
        """Record a seed."""
        self.seeds.append(seed)
        self.admitted += world.pods.admitted
        self.refused += world.pods.refused
        self.unhealthy_refused += world.pods.unhealthy_refused
        self.starts += world.plugin.starts
        grown = world.plugin.grown
        self.descriptors = max(self.descriptors, grown.descriptors)
        self.threads = max(self.threads, grown.threads)
        self.resident = max(self.resident, grown.resident)

    def lines(self) -> list[str]:
        """Return the summary."""
        seeds = ", ".join(map(str, self.seeds))
        grown = f"{self.descriptors} descriptors, {self.threads} threads, {self.resident:.0f} MB"
        pods = f"{self.admitted} pods admitted, {self.refused} rejected during faults"
        return [
            f"{self.faults} faults in {len(self.steps)} steps of {len(self.seeds)} seeds: {seeds}",
            f"recovery: {of(self.steps)}",
            f"{pods}; {self.unhealthy_refused} requests for unhealthy devices refused; {self.starts} processes",
            f"largest growth over the baseline: {grown}",
        ]

    def table(self) -> str:
        """Return a table of each fault's recovery times, the slowest first."""
        rows = [
            (name, str(len(times)), f"{statistics.median(times):.2f} s", f"{max(times):.2f} s")
            for name, times in sorted(self.by_fault.items(), key=lambda item: -statistics.median(item[1]))
        ]
        return table(("fault", "count", "recovery: median", "worst"), rows)


def of(times: Sequence[float]) -> str:
    """Return median and maximum of times in seconds."""
    return f"median {statistics.median(times):.2f} s, worst {max(times):.2f} s" if times else "no step"
