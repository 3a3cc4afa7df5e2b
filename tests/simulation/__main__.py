"""``python -m tests.simulation``: random faults, their report, and the smallest case of each failure."""

import argparse
import collections
import gc
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.patches import modules
from tests.simulation.scenario import Result, Step, kind_of, run, shrunk, steps_of


def _case(arguments: tuple[int, int]) -> tuple[Result, list[Step]]:
    seed, count = arguments
    result = run(seed, steps_of(seed, count))
    if result.violations:
        return result, shrunk(seed, steps_of(seed, count)[: result.faults.total()], kind_of(result))
    result.lines = []
    return result, []


def _prepare() -> None:
    """Import everything, and collect garbage less often: a run makes little."""
    modules()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def main() -> int:
    """Run the simulation, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--length", type=int, default=120, help="faults of a run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--failures", type=int, default=5, help="end after so many")
    parser.add_argument("--log", type=Path, help="write the log of the last failed run")
    options = parser.parse_args()
    report, seed = Report(time.monotonic()), options.seed
    with ProcessPoolExecutor(options.jobs, initializer=_prepare) as pool:
        while report.kinds.total() < options.faults and report.elapsed < options.seconds:
            runs = min(8 * options.jobs, math.ceil((options.faults - report.kinds.total()) / options.length))
            for result, steps in pool.map(_case, ((seed + number, options.length) for number in range(runs))):
                report.add(result, steps)
                if steps and options.log:
                    options.log.write_text("\n".join(run(result.seed, steps).lines) + "\n", encoding="utf-8")
            seed += runs
            if report.failures >= options.failures:
                break
    report.show()
    return 1 if report.failures else 0


class Report:
    """What the runs have shown."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.kinds: collections.Counter[str] = collections.Counter()
        self.failures = 0
        self._worst: dict[str, float] = {}
        self._silence = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def add(self, result: Result, steps: list[Step]) -> None:
        """Count a run; show the faults that are enough for its failure."""
        self.kinds += result.faults
        self._silence = max(self._silence, result.silence)
        for name, seconds in result.recoveries.items():
            self._worst[name] = max(self._worst.get(name, 0.0), seconds)
        if result.violations:
            self.failures += 1
            print(f"seed {result.seed}: {result.violations[0]}")
            for step in steps:
                print(f"    {step}")

    def show(self) -> None:
        """Print the numbers."""
        total, rate = self.kinds.total(), self.kinds.total() / self.elapsed
        print(f"{total:,} faults in {self.elapsed:.0f} s ({rate:.0f} a second), {self.failures} failures")
        print(f"the longest time without a signal of what was missing: {self._silence:.2f} s")
        for name, count in sorted(self.kinds.items()):
            print(f"  {name:<32}{count:>9,}   worst recovery {self._worst.get(name, 0.0):6.2f} s")


if __name__ == "__main__":
    sys.exit(main())
