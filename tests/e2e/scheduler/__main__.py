"""``python -m tests.e2e.scheduler``: how fast pods with phones are bound in a large fleet, and what that costs.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are real. Nodes, slices and the device plugins'
allocatable phones are simulated, and no kubelet runs the pods. Requires root, Debian and Go.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Final

from tests.e2e.cluster import parts, sandbox
from tests.e2e.common.report import say
from tests.e2e.kubelet.parts import NEWEST
from tests.e2e.scheduler import run

LIMIT: Final = 3600.0
"""The time limit of one kind of request, in seconds."""


def main() -> int:
    """Measure each kind of request in a sandbox of its own, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.scheduler", description=__doc__)
    show = "default: %(default)s"
    parser.add_argument("--nodes", type=int, nargs="+", default=[200, 1000], help=show)
    parser.add_argument("--phones", type=int, default=120, help=f"of each node; {show}")
    parser.add_argument("--pods", type=int, default=1000, help=f"created at once; {show}")
    parser.add_argument("--requests", nargs="+", choices=run.REQUESTS, default=run.REQUESTS, help=show)
    parser.add_argument("--limits", nargs="+", choices=("raised", "default"), default=["raised", "default"], help=show)
    parser.add_argument("--limit", type=float, default=600.0, help=f"seconds until all pods are bound; {show}")
    options = parser.parse_args()
    find = partial(parts.control_plane, NEWEST)
    say(f"| {' | '.join(run.HEAD)} |\n| {' | '.join(['---'] * len(run.HEAD))} |")
    code = 0
    for nodes in options.nodes:
        for request in options.requests:
            code |= sandbox.main(find, run.main, options, nodes, request, seconds=LIMIT)
    return code


if __name__ == "__main__":
    sys.exit(main())
