"""``python -m tests.e2e.cluster.chaos``: the package's docstring describes it. Requires root, Debian and Go."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.e2e.cluster import parts, sandbox
from tests.e2e.cluster.chaos import __doc__ as description
from tests.e2e.common import packages
from tests.e2e.common.report import say
from tests.e2e.kubelet.parts import PROJECT


def main() -> int:
    """Run a seed in a sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster.chaos", description=description)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="default: a random one")
    parser.add_argument("--minutes", type=float, default=30.0, help="default: %(default)s")
    parser.add_argument("--only", default="", metavar="TEXT,TEXT", help="only faults whose names contain one of these")
    options = parser.parse_args()
    try:
        found = parts.collect(newest=False)
    except packages.MissingError as error:
        say(f"skipped: {error}")
        return 0
    words = f"--seed {options.seed} --minutes {options.minutes:g}" + (f" --only '{options.only}'" * bool(options.only))
    say(f'seed {options.seed}; to repeat: make chaos-cluster CHAOS="{words}"')
    work = Path(tempfile.mkdtemp(prefix="aosp-cluster-"))
    try:
        arguments = ["--work", str(work), "--seed", str(options.seed), "--minutes", str(options.minutes)]
        arguments += ["--only", options.only, "--parts", *found.arguments()]
        limit = 60 * options.minutes + 1800
        return sandbox.enter("tests.e2e.cluster.chaos.run", arguments, project=PROJECT, seconds=limit)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
