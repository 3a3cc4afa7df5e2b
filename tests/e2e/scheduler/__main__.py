"""``python -m tests.e2e.scheduler``: how fast pods with phones are bound in a large fleet, and what that costs.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are real. Nodes, slices and the device plugins'
allocatable phones are simulated, and no kubelet runs the pods. Requires root, Debian and Go.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from tests.e2e.cluster import sandbox
from tests.e2e.common import packages
from tests.e2e.common.report import say
from tests.e2e.kubelet import parts
from tests.e2e.kubelet.sandbox import problem
from tests.e2e.scheduler import results
from tests.e2e.scheduler.objects import Variant

_LIMIT: Final = 3600.0
"""The time limit of one variant, in seconds."""
_VERSIONS: Final = {"oldest": parts.KUBERNETES, "newest": parts.NEWEST}


def main() -> int:
    """Measure each variant in a sandbox of its own, print the tables, and return the exit code."""
    options = _options()
    work = Path(tempfile.mkdtemp(prefix="aosp-scheduler-"))
    file = options.json.resolve() if options.json else work / "results.jsonl"
    try:
        programs = _programs(options.kubernetes)
        code = 0
        for nodes in options.nodes:
            for variant in options.variants:
                code |= _measure(options, programs, work / f"{nodes}-{variant}", nodes, variant, file)
        _print(file)
    except packages.MissingError as error:
        say(f"skipped: {error}")
        return 0
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return code


def _measure(options: argparse.Namespace, programs: Path, work: Path, nodes: int, variant: str, file: Path) -> int:
    work.mkdir()
    arguments = ["--work", str(work), "--programs", str(programs), "--results", str(file)]
    arguments += ["--nodes", str(nodes), "--variant", variant, "--limits", ",".join(options.limits)]
    for name in ("phones", "used", "pods", "single", "percentage", "limit"):
        arguments += [f"--{name}", str(getattr(options, name))]
    try:
        return sandbox.enter("tests.e2e.scheduler.inside", arguments, project=parts.PROJECT, seconds=_LIMIT)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _print(file: Path) -> None:
    if not file.exists():
        return
    runs = [msgspec.json.decode(line, type=results.Run) for line in file.read_bytes().splitlines()]
    say(f"CPU and memory: {', '.join(results.PROGRAMS)}")
    for table in (results.speed_table, results.cost_table, results.request_table, results.phase_table):
        say(f"\n{table(runs)}")


def _programs(version: str) -> Path:
    packages.install(("openssl", "iproute2"))
    if text := problem():
        raise packages.MissingError(text)
    return parts.kubernetes(_VERSIONS[version])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.scheduler", description=__doc__)
    show = "default: %(default)s"
    parser.add_argument("--nodes", type=int, nargs="+", default=[200, 1000], help=show)
    parser.add_argument("--phones", type=int, default=120, help=f"of each node; {show}")
    parser.add_argument("--used", type=int, default=0, help=f"of them, which other pods have; {show}")
    parser.add_argument("--pods", type=int, default=1000, help=f"created at once; {show}")
    parser.add_argument("--single", type=int, default=30, help=f"pods created one at a time before; {show}")
    parser.add_argument("--variants", nargs="+", choices=list(Variant), default=list(Variant), help=show)
    parser.add_argument("--limits", nargs="+", choices=("raised", "default"), default=["raised", "default"], help=show)
    parser.add_argument("--percentage", type=int, default=0, help="percentageOfNodesToScore; default: the scheduler's")
    parser.add_argument("--kubernetes", choices=tuple(_VERSIONS), default="newest", help=show)
    parser.add_argument("--limit", type=float, default=600.0, help=f"seconds until all pods are bound; {show}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the results to a file, and print all of it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
