"""What happened, how often, and how long it took until all was well again."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.world import World


@dataclass
class Tally:
    """Of all seeds of a run."""

    seeds: list[int] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    """Seconds until all was well, step by step."""
    by_fault: dict[str, list[float]] = field(default_factory=dict)
    """The same, of the steps in which each fault happened."""
    admitted: int = 0
    refused: int = 0
    not_fit: int = 0
    starts: int = 0
    descriptors: int = 0
    threads: int = 0
    resident: float = 0.0

    @property
    def faults(self) -> int:
        """How many there were."""
        return sum(map(len, self.by_fault.values()))

    def settled(self, faults: Sequence[str], seconds: float) -> None:
        """Note a step."""
        self.steps.append(seconds)
        for name in faults:
            self.by_fault.setdefault(name, []).append(seconds)

    def ended(self, seed: int, world: World) -> None:
        """Note a seed."""
        self.seeds.append(seed)
        self.admitted += world.pods.admitted
        self.refused += world.pods.refused
        self.not_fit += world.pods.not_fit
        self.starts += world.plugin.starts
        grown = world.plugin.grown
        self.descriptors = max(self.descriptors, grown.descriptors)
        self.threads = max(self.threads, grown.threads)
        self.resident = max(self.resident, grown.resident)

    def lines(self) -> list[str]:
        """Return what there is to say in the end."""
        seeds = ", ".join(map(str, self.seeds))
        grown = f"{self.descriptors} descriptors, {self.threads} threads, {self.resident:.0f} MB"
        pods = f"{self.admitted} pods admitted, {self.refused} refused amid a fault"
        return [
            f"{self.faults} faults in {len(self.steps)} steps of {len(self.seeds)} seeds: {seeds}",
            f"until all was well: {of(self.steps)}",
            f"{pods}; {self.not_fit} devices that were not fit asked for, in vain; {self.starts} processes",
            f"at the most above the baseline: {grown}",
        ]

    def table(self) -> Table:
        """Return the times of each fault, the slowest first."""
        table = Table("fault", "times", "until all was well: median", "worst")
        for name, times in sorted(self.by_fault.items(), key=lambda one: -statistics.median(one[1])):
            table.add_row(name, str(len(times)), f"{statistics.median(times):.2f} s", f"{max(times):.2f} s")
        return table


def of(times: Sequence[float]) -> str:
    """Return the median and the worst of some times in seconds."""
    return f"median {statistics.median(times):.2f} s, worst {max(times):.2f} s" if times else "no step"
