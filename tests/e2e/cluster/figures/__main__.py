"""``python -m tests.e2e.cluster.figures``: the package's docstring describes it. Requires root, Debian and Go."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.e2e.cluster import parts, sandbox
from tests.e2e.cluster.figures import __doc__ as description
from tests.e2e.common import packages
from tests.e2e.common.report import say
from tests.e2e.kubelet.parts import PROJECT

_LIMIT: Final = 7200.0
"""The time limit of a run, in seconds."""


def main() -> int:
    """Measure in a sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster.figures", description=description)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--rest", type=float, default=10.0, metavar="MINUTES", help="default: %(default)s")
    parser.add_argument("--devices", type=int, default=120, help="at most 128, which fit in one slice")
    parser.add_argument("--drivers", default="go,found,phones", help="default: %(default)s")
    parser.add_argument("--skip", default="", help="steps to skip: latencies, pods, repair, rest, off, parts")
    parser.add_argument("--json", default="", metavar="FILE", help="write all values to a file")
    options = parser.parse_args()
    try:
        found = parts.collect(newest=False, dra_driver=True)
    except packages.MissingError as error:
        say(f"skipped: {error}")
        return 0
    work = Path(tempfile.mkdtemp(prefix="aosp-cluster-"))
    try:
        arguments = ["--work", str(work), "--rounds", str(options.rounds), "--rest", str(options.rest)]
        arguments += ["--devices", str(options.devices), "--drivers", options.drivers, "--skip", options.skip]
        arguments += ["--json", os.path.abspath(options.json) if options.json else "", "--parts", *found.arguments()]
        return sandbox.enter("tests.e2e.cluster.figures.run", arguments, project=PROJECT, seconds=_LIMIT)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
