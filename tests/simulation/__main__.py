"""``python -m tests.simulation``: random faults, their report, and the smallest case of each failure."""

import argparse
import collections
import gc
import math
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tests.simulation.scenario import Result, Step, kind_of, run, shrunk, steps_of


class Case(NamedTuple):
    """A run that has ended."""

    result: Result
    cpu: float
    """Seconds of a processor that it took."""
    steps: list[Step]
    """The few faults that are enough for its failure."""


def _case(arguments: tuple[int, int, list[str]]) -> Case:
    seed, count, only = arguments
    began = time.process_time()
    steps = steps_of(seed, count, only)
    result = run(seed, steps)
    gc.collect()
    cpu = time.process_time() - began
    if result.violations:
        # Shrinking may take minutes; whoever ends it knows at least this.
        print(f"seed {seed}: {result.violations[0]}", file=sys.stderr, flush=True)
        return Case(result, cpu, shrunk(seed, steps[: result.faults.total()], kind_of(result)))
    result.lines = []
    return Case(result, cpu, [])


def _prepare() -> None:
    """Collect garbage only between two runs."""
    gc.freeze()
    gc.disable()


def main() -> int:
    """Run the simulation, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--length", type=int, default=240, help="faults of a run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--failures", type=int, default=5, help="end after so many")
    parser.add_argument("--log", type=Path, help="write the log of the last failed run")
    parser.add_argument("--report", type=Path, help="write the report there as well, also while it grows")
    parser.add_argument("--only", nargs="*", default=[], help="inject these faults alone")
    options = parser.parse_args()
    report = Report(time.monotonic())
    seeds = iter(range(options.seed, options.seed + math.ceil(options.faults / options.length)))
    cases = ((seed, options.length, options.only) for seed in seeds)
    with ProcessPoolExecutor(options.jobs, initializer=_prepare) as pool:
        running = {pool.submit(_case, case) for case in islice(cases, 2 * options.jobs)}
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for case in (each.result() for each in ended):
                report.add(case)
                if case.steps and options.log:
                    options.log.write_text("\n".join(run(case.result.seed, case.steps).lines) + "\n", encoding="utf-8")
            if options.report:
                options.report.write_text(report.text(), encoding="utf-8")
            if report.elapsed < options.seconds and len(report.failures) < options.failures:
                running |= {
                    pool.submit(_case, (seed, options.length, options.only)) for seed in islice(seeds, len(ended))
                }
    print(report.text(), end="")
    return 1 if report.failures else 0


class Report:
    """What the runs have shown."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.kinds: collections.Counter[str] = collections.Counter()
        self._changes: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        """Each with the faults that are enough for it."""
        self._worst: dict[str, float] = {}
        self._cpu = self._silence = self._echo = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def add(self, case: Case) -> None:
        """Count a run."""
        result = case.result
        self.kinds += result.faults
        self._changes += result.changes
        self._cpu += case.cpu
        self._silence = max(self._silence, result.silence)
        self._echo = max(self._echo, result.echo)
        for name, seconds in result.recoveries.items():
            self._worst[name] = max(self._worst.get(name, 0.0), seconds)
        if result.violations:
            failure = [f"seed {result.seed}: {result.violations[0]}", *(f"    {step}" for step in case.steps)]
            self.failures.append("\n".join(failure))

    def text(self) -> str:
        """Return the failures and the numbers."""
        total, elapsed = self.kinds.total(), self.elapsed
        wall, cpu, failed = total / elapsed, total / self._cpu, len(self.failures)
        numbers = [
            f"{total:,} faults in {elapsed:.0f} s: {wall:.0f} a second, {cpu:.0f} of a processor; {failed} failures",
            f"longest time without a signal of what was wrong: {self._silence:.2f} s",
            f"longest time with a signal of what was no longer wrong: {self._echo:.2f} s",
            f"{self._changes.total():,} changes of the configuration",
            *(f"  {name:<32}{count:>9,}" for name, count in sorted(self._changes.items())),
            "faults",
            *(
                f"  {name:<32}{count:>9,}   worst recovery {self._worst.get(name, 0.0):6.2f} s"
                for name, count in sorted(self.kinds.items())
            ),
        ]
        return "\n".join([*self.failures, *numbers]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
