"""``python -m tests.e2e.cluster.storm``: the package's docstring describes it. Requires root, Debian and Go."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.e2e.cluster import parts, sandbox
from tests.e2e.cluster.storm import __doc__ as description
from tests.e2e.cluster.storm.scenes import SCENES
from tests.e2e.common import packages
from tests.e2e.common.report import say
from tests.e2e.kubelet.parts import PROJECT

_LIMIT: Final = 7200.0
"""The time limit of a run, in seconds."""


def main() -> int:
    """Measure in a sandbox, and return the exit code: 1 if a pod or a request failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster.storm", description=description)
    parser.add_argument("--phones", type=int, default=120, help="of each storm; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="storms of each scene; default: %(default)s")
    parser.add_argument("--scenes", default=",".join(SCENES), help="default: %(default)s")
    parser.add_argument("--kubelet", default="{}", metavar="JSON", help='more settings, such as {"kubeAPIQPS": 500}')
    parser.add_argument("--readable-claims", action="store_true", help="let kubelets read all claims, by RBAC")
    parser.add_argument("--json", default="", metavar="FILE", help="write all values to a file")
    options = parser.parse_args()
    try:
        found = parts.collect(newest=False)
    except packages.MissingError as error:
        say(f"skipped: {error}")
        return 0
    work = Path(tempfile.mkdtemp(prefix="aosp-cluster-"))
    try:
        arguments = ["--work", str(work), "--phones", str(options.phones), "--rounds", str(options.rounds)]
        arguments += ["--scenes", options.scenes, "--kubelet", options.kubelet]
        arguments += ["--readable-claims"] if options.readable_claims else []
        arguments += ["--json", os.path.abspath(options.json) if options.json else "", "--parts", *found.arguments()]
        return sandbox.enter("tests.e2e.cluster.storm.run", arguments, project=PROJECT, seconds=_LIMIT)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
