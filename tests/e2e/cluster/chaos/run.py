"""The steps of a run, in the sandbox."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING

from tests.e2e.cluster.chaos.faults import FAULTS, step
from tests.e2e.cluster.chaos.world import MACHINES, World
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.common.report import FAILED, PASSED, describe, say

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from tests.e2e.cluster.chaos.faults import Fault
    from tests.e2e.cluster.parts import Parts


def main(work: Path, cgroups: str, parts: Parts, options: Namespace) -> int:
    """Run the steps, and return the exit code."""
    cluster = Cluster(parts, work, cgroups)
    cluster.start(MACHINES)
    with World(cluster) as world:
        code = _Run(world, options.seed).run(60 * options.minutes)
    cluster.stop()
    return code


class _Run:
    """The steps of one seed."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._times: list[float] = []
        self._counts: Counter[str] = Counter()
        self._failed = False

    def run(self, seconds: float) -> int:
        """Run steps until the time is over, and return the exit code."""
        started = time.monotonic()
        while time.monotonic() - started < seconds and not self._failed:
            self._step(f"step {len(self._times) + 1}")
        say(f"{len(self._times)} steps, {self._counts.total()} faults")
        for name, count in sorted(self._counts.items()):
            say(f"  {count:3} {name}")
        median, worst = statistics.median(self._times or [0]), max(self._times, default=0)
        say(f"all invariants held again after: median {median:.1f} s, worst {worst:.1f} s")
        say(f"the containers' devices were compared {self._world.rounds} times")
        return FAILED if self._failed else PASSED

    def _choose(self) -> list[Fault]:
        """Return one to three faults of different places."""
        chosen: list[Fault] = []
        for _ in range(self._rng.choice((1, 1, 1, 2, 2, 3))):
            left = [fault for fault in FAULTS.values() if all(fault.place != other.place for other in chosen)]
            if left:
                chosen += self._rng.choices(left, [fault.weight for fault in left])
        return chosen

    def _step(self, title: str) -> None:
        faults = self._choose()
        self._counts.update(fault.name for fault in faults)
        try:
            text, seconds = step(self._world, faults, self._rng)
            self._times.append(seconds)
            say(f"{title}  {text}: ok after {seconds:.1f} s")
        except Exception as error:  # noqa: BLE001 - the state of the cluster is printed after any error
            self._failed = True
            say(f"{title}  {', '.join(fault.name for fault in faults)}: not ok: {describe(error)}")
            with contextlib.suppress(Exception):
                say(self._world.cluster.kubectl("get", "nodes,pods", "--all-namespaces", "--output=wide"))
            for name, tail in self._world.cluster.tails():
                say(f"# end of the log of {name}:\n{tail}")
