"""``python -m tests.e2e.fleet``: how long ``kubectl phones`` takes for a large cluster, with a real kube-apiserver.

The objects are simulated: nodes, the plugin's pods, phones with pods, and with DRA their slices and claims. etcd,
kube-apiserver and kubectl are real. Requires root, Debian and Go.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.e2e.cluster import sandbox
from tests.e2e.common import packages
from tests.e2e.common.report import say
from tests.e2e.kubelet import parts
from tests.e2e.kubelet.sandbox import problem

_LIMIT: Final = 1800.0
"""The time limit in seconds."""


def main() -> int:
    """Measure in a sandbox for each API, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--phones", type=int, default=120, help="of each node; default: %(default)s")
    parser.add_argument("--runs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--api", choices=("device-plugin", "dra", "both"), default="both", help="default: %(default)s")
    parser.add_argument("--limit", type=float, default=0.0, help="fail if the median is longer; default: no limit")
    options = parser.parse_args()
    try:
        programs = _programs()
    except packages.MissingError as error:
        say(f"skipped: {error}")
        return 0
    code = 0
    for api in ("device-plugin", "dra") if options.api == "both" else (options.api,):
        work = Path(tempfile.mkdtemp(prefix="aosp-fleet-"))
        arguments = ["--work", str(work), "--programs", str(programs), "--api", api, "--limit", str(options.limit)]
        arguments += ["--nodes", str(options.nodes), "--phones", str(options.phones), "--runs", str(options.runs)]
        try:
            code |= sandbox.enter("tests.e2e.fleet.inside", arguments, project=parts.PROJECT, seconds=_LIMIT)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return code


def _programs() -> Path:
    packages.install(("openssl", "iproute2"))
    if text := problem():
        raise packages.MissingError(text)
    return parts.kubernetes()


if __name__ == "__main__":
    sys.exit(main())
