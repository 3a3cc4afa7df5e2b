"""``python -m tests.e2e.apiserver``: the client of the API server, and the stand-in's contract, with kube-apiserver.

Requires root, Debian and Go: etcd and two versions of kube-apiserver are built and cached, and run in a sandbox.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Final

from tests.e2e.apiserver import inside
from tests.e2e.cluster import parts, sandbox
from tests.e2e.kubelet.parts import KUBERNETES, NEWEST

LIMIT: Final = 900.0
"""The time limit for a version, in seconds."""


def main() -> int:
    """Run the checks in a sandbox for each version, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.apiserver", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="run the checks whose title contains TEXT")
    parser.add_argument("--items", choices=("all", "core"), default="all", help="all versions, or the oldest one")
    options = parser.parse_args()
    code = 0
    for module in (KUBERNETES, NEWEST) if options.items == "all" else (KUBERNETES,):
        code |= sandbox.main(partial(parts.control_plane, module), inside.main, options.only, seconds=LIMIT)
    return code


if __name__ == "__main__":
    sys.exit(main())
