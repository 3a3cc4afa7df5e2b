"""``python -m tests.e2e.cluster.storm``: the package's docstring describes it. Requires root, Debian and Go."""

import argparse
import os
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Final

from tests.e2e.cluster import parts, sandbox
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import DEVICES
from tests.e2e.cluster.parts import Parts
from tests.e2e.cluster.storm import __doc__ as description
from tests.e2e.cluster.storm import records
from tests.e2e.cluster.storm.scenes import SCENES, Stage
from tests.e2e.common.report import describe, say

LIMIT: Final = 7200.0
"""The time limit of a run, in seconds."""


def main() -> int:
    """Measure in a sandbox, and return the exit code: 1 if a pod or a request failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster.storm", description=description)
    parser.add_argument("--phones", type=int, default=120, help="of each storm; default: %(default)s")
    find = partial(parts.collect, newest=False)
    return sandbox.main(find, _inside, parser.parse_args(), seconds=LIMIT)


def _inside(work: Path, cgroups: str, found: Parts, options: Namespace) -> int:
    """Run the scenes in turn, and return the exit code."""
    cluster = Cluster(found, work, cgroups)
    cluster.start()
    cluster.machine.create_devices(options.phones)
    stages = [Stage(cluster, name, max(options.phones, DEVICES)) for name in SCENES]
    failed = sum(_storm(cluster, stage, options.phones) for stage in stages)
    cluster.stop()
    return int(failed)


def _storm(cluster: Cluster, stage: Stage, count: int) -> int:
    """Run a storm of a scene, print its figures, and return the number of failures."""
    title, load, started = stage.scene.title, os.getloadavg()[0], time.monotonic()
    stage.start()
    try:
        storm = records.record(cluster, stage, count)
        failures = records.failures(storm)
        rows = [f"{row}: {value:,.1f}" for row, value in records.rows(storm).items()]
        say(f"{title}: {'; '.join(rows)}")
    except AssertionError as error:
        failures = [describe(error)]
        records.remove(cluster)
    stage.stop()
    for text in failures:
        say(f"# {title}: {text[:400]}")
    say(f"# {title}: {len(failures)} failures; {time.monotonic() - started:.0f} s; load average before it {load:.1f}")
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
