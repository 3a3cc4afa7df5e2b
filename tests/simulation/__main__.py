"""``python -m tests.simulation``: random faults, their report, and the smallest case of each failure."""

import argparse
import collections
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.scenario import Result, Step, kind_of, run, shrunk, steps_of


def _case(arguments: tuple[int, int]) -> tuple[Result, list[Step]]:
    seed, count = arguments
    result = run(seed, steps_of(seed, count))
    if result.violations:
        return result, shrunk(seed, steps_of(seed, count), kind_of(result))
    result.lines = []
    return result, []


def main() -> int:
    """Run the simulation, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--length", type=int, default=120, help="faults of a run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--failures", type=int, default=5, help="end after so many")
    parser.add_argument("--log", type=Path, help="write the log of the last failed run")
    options = parser.parse_args()
    started = time.monotonic()
    kinds: collections.Counter[str] = collections.Counter()
    worst: dict[str, float] = {}
    failures, silence = 0, 0.0
    seeds = range(options.seed, options.seed + max(1, options.faults // options.length))
    with ProcessPoolExecutor(options.jobs) as pool:
        for result, steps in pool.map(_case, ((seed, options.length) for seed in seeds)):
            kinds += result.faults
            silence = max(silence, result.silence)
            for name, seconds in result.recoveries.items():
                worst[name] = max(worst.get(name, 0.0), seconds)
            if result.violations:
                failures += 1
                print(f"seed {result.seed}: {result.violations[0]}")
                for step in steps:
                    print(f"    {step}")
                if options.log:
                    options.log.write_text("\n".join(run(result.seed, steps).lines) + "\n", encoding="utf-8")
                if failures >= options.failures:
                    pool.shutdown(cancel_futures=True)
                    break
    seconds = time.monotonic() - started
    print(f"{kinds.total():,} faults in {seconds:.0f} s ({kinds.total() / seconds:.0f} a second), {failures} failures")
    print(f"the longest time without a signal of what was missing: {silence:.2f} s")
    for name in sorted(kinds):
        print(f"  {name:<32}{kinds[name]:>9,}   worst recovery {worst.get(name, 0.0):6.2f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
