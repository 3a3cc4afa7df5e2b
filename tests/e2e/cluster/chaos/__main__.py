"""``python -m tests.e2e.cluster.chaos``: the package's docstring describes it. Requires root, Debian and Go."""

from __future__ import annotations

import argparse
import secrets
import sys
from functools import partial

from tests.e2e.cluster import parts, sandbox
from tests.e2e.cluster.chaos import __doc__ as description
from tests.e2e.cluster.chaos import run
from tests.e2e.common.report import say


def main() -> int:
    """Run a seed in a sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster.chaos", description=description)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="default: a random one")
    parser.add_argument("--minutes", type=float, default=30.0, help="default: %(default)s")
    options = parser.parse_args()
    say(f'to repeat: make chaos-cluster CHAOS="--seed {options.seed} --minutes {options.minutes:g}"')
    limit = 60 * options.minutes + 1800
    return sandbox.main(partial(parts.collect, newest=False), run.main, options, seconds=limit)


if __name__ == "__main__":
    sys.exit(main())
