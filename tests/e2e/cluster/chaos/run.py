"""The steps of a run, in the sandbox."""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import invariants, plugin, sandbox
from tests.e2e.cluster.chaos import control_plane_faults, device_faults, machine_faults, plugin_faults
from tests.e2e.cluster.chaos.monitor import Monitor
from tests.e2e.cluster.chaos.registry import FAULTS
from tests.e2e.cluster.chaos.world import MACHINES, World
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.parts import Parts
from tests.e2e.common.report import FAILED, PASSED, describe, say

if TYPE_CHECKING:
    from tests.e2e.cluster.chaos.registry import Fault

MODULES: Final = (control_plane_faults, device_faults, machine_faults, plugin_faults)
"""The modules that register faults."""
_EFFECT: Final = 1.0
"""Seconds from the end of the faults to the first check: some have an effect only then."""
_TAIL: Final = 6
"""Lines of each log that are printed after a failure."""
GIVE_UP: Final = 3
"""Failed steps after which a run ends."""


def main() -> int:
    """Run the steps, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cgroups", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    sandbox.set_up()
    cluster = Cluster(Parts.from_arguments(options.parts), options.work, options.cgroups)
    cluster.start(MACHINES)
    world = World(cluster)
    world.start()
    code = _Run(world, options.seed, options.only).run(60 * options.minutes)
    cluster.stop()
    return code


class _Run:
    """The steps of one seed."""

    def __init__(self, world: World, seed: int, only: str) -> None:
        self._world = world
        self._monitor = Monitor(world.cluster)
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._faults = [fault for fault in FAULTS.values() if any(text in fault.name for text in only.split(","))]
        self._times: list[float] = []
        self._counts: Counter[str] = Counter()
        self._failed = 0

    def run(self, seconds: float) -> int:
        """Run steps until the time is over, and return the exit code."""
        started = time.monotonic()
        number = 0
        with self._monitor:
            while time.monotonic() - started < seconds and self._failed < GIVE_UP:
                number += 1
                elapsed = int(time.monotonic() - started)
                self._step(f"step {number}, {elapsed // 60:02}:{elapsed % 60:02}")
        minutes = (time.monotonic() - started) / 60
        say(f"{number} steps in {minutes:.1f} minutes, {self._counts.total()} faults, {self._failed} steps failed")
        for name, count in sorted(self._counts.items()):
            say(f"  {count:3} {name}")
        if self._times:
            median, worst = statistics.median(self._times), max(self._times)
            say(f"all invariants held again after: median {median:.1f} s, worst {worst:.1f} s")
        say(f"the containers' devices were compared {self._monitor.rounds} times")
        rejected = Counter(pod["status"].get("reason") for pod in invariants.observe(self._world.cluster).pods)
        say(f"pods that kubelets rejected: { ({key: count for key, count in rejected.items() if key}) }")
        return FAILED if self._failed else PASSED

    def _choose(self) -> list[Fault]:
        """Return one to three faults of different places."""
        chosen: list[Fault] = []
        for _ in range(self._rng.choice((1, 1, 1, 2, 2, 3))):
            left = [fault for fault in self._faults if all(fault.place != other.place for other in chosen)]
            if left:
                chosen += self._rng.choices(left, [fault.weight for fault in left])
        return chosen

    def _step(self, title: str) -> None:
        world, faults = self._world, self._choose()
        seeds = [self._rng.random() for _ in faults]
        world.begin()
        texts: list[str] = []
        problems: list[str] = []
        seconds = 0.0
        try:
            with contextlib.ExitStack() as lasting:
                for fault, seed in zip(faults, seeds, strict=True):
                    texts.append(fault.name)
                    rng = random.Random(seed)  # noqa: S311
                    texts[-1] += f" ({lasting.enter_context(fault.inject(world, rng))})"
                    self._counts[fault.name] += 1
            time.sleep(_EFFECT)
            seconds = invariants.settle(world.cluster, seconds=max(fault.bound for fault in faults), tend=world.tend)
            problems = world.disturbed() + self._monitor.take()
        except Exception as error:  # noqa: BLE001 - the next steps run after any error
            problems = [describe(error)]
        self._times.append(seconds)
        say(f"{title}  {'; '.join(texts)}: {'not ok' if problems else 'ok'} after {seconds:.1f} s")
        if problems:
            self._report(problems)

    def _report(self, problems: list[str]) -> None:
        """Print what is wrong, and bring everything back."""
        self._failed += 1
        for problem in problems:
            say(f"#   {problem}")
        with contextlib.suppress(Exception):
            say(self._world.cluster.kubectl("get", "pods", "--all-namespaces", "--output=wide"))
            say(self._world.cluster.kubectl("get", "nodes"))
            for pod in plugin.pods(self._world.cluster):
                name = pod["metadata"]["name"]
                say(f"# log of {name} on {pod['spec'].get('nodeName')}:")
                say(self._world.cluster.kubectl("logs", f"--namespace={plugin.NAMESPACE}", name, "--tail=20"))
        for name, tail in self._world.cluster.tails():
            lines = "\n".join(line[:250] for line in tail.splitlines()[-_TAIL:])
            say(f"# end of the log of {name}:\n{lines}")
        with contextlib.suppress(Exception):
            self._world.recover()
            invariants.settle(self._world.cluster, tend=self._world.tend)
            say("# recovered")


if __name__ == "__main__":
    raise SystemExit(main())
