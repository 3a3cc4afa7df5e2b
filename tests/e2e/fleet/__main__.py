"""``python -m tests.e2e.fleet``: how long ``kubectl phones`` takes for a large cluster, with a real kube-apiserver.

The objects are simulated: nodes, the plugin's pods, phones with pods, and with DRA their slices and claims. etcd,
kube-apiserver and kubectl are real. Requires root, Debian and Go.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import parts, sandbox
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.common.proc import processor_seconds
from tests.e2e.common.report import PASSED, say
from tests.e2e.fleet import objects
from tests.e2e.fleet.load import load
from tests.e2e.fleet.objects import Fleet
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from pathlib import Path

LIMIT: Final = 1800.0
"""The time limit in seconds."""
_PROGRAM: Final = "import sys; from kubectl_phones.__main__ import main; sys.exit(main())"
_SELECTED: Final = {
    "everything": (),
    "--node": ("--node", objects.node_name(1)),
    "--namespace": ("--namespace", "tenant-1"),
}


def main() -> int:
    """Measure in a sandbox for each API, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--phones", type=int, default=120, help="of each node; default: %(default)s")
    parser.add_argument("--runs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--api", choices=("device-plugin", "dra", "both"), default="both", help="default: %(default)s")
    options = parser.parse_args()
    code = 0
    for api in ("device-plugin", "dra") if options.api == "both" else (options.api,):
        code |= sandbox.main(parts.control_plane, _inside, options, api, seconds=LIMIT)
    return code


def _inside(work: Path, _cgroups: str, programs: Path, options: Namespace, api: str) -> int:
    """Start etcd and kube-apiserver, create the fleet, print the figures, and check the output."""
    fleet = Fleet(options.nodes, options.phones, options.phones - 1, dra=api == "dra", problems=True)
    plane = ControlPlane(programs, work / "control-plane")
    plane.start_api_server()
    until(lambda: plane.api.find(f"{CORE}/namespaces/default"), "the namespace default exists")
    load(plane.api, fleet)
    *_, last = objects.phone_pods(fleet, fleet.nodes - 1)
    path = f"{CORE}/namespaces/{last['metadata']['namespace']}/pods/{last['metadata']['name']}"
    until(lambda: plane.api.get(path, resourceVersion="0"), "the API server has read the last pod", seconds=120)
    say(f"# {api}: {fleet.nodes:,} nodes with {fleet.phones:,} phones each; load average {os.getloadavg()[0]:.1f}")
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    os.environ["KUBECONFIG"] = str(plane.kubeconfig)
    for what, arguments in _SELECTED.items():
        before, used = resource.getrusage(resource.RUSAGE_CHILDREN), processor_seconds(plane.apiserver.pid)
        walls = [_run(arguments) for _ in range(options.runs)]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        client = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / options.runs
        server = (processor_seconds(plane.apiserver.pid) - used) / options.runs
        say(
            f"#   {what + ':':15} median {statistics.median(walls):5.2f} s, {min(walls):.2f} to {max(walls):.2f} s; "
            f"CPU: command and kubectl {client:.2f} s, kube-apiserver {server:.2f} s"
        )
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    say(f"#   the largest process of the command: {largest / 1024:.0f} MiB")
    result = subprocess.run((sys.executable, "-c", _PROGRAM, "--output=json"), stdout=subprocess.PIPE, check=True)
    _check(fleet, json.loads(result.stdout))
    plane.stop()
    return PASSED


def _run(arguments: Sequence[str]) -> float:
    """Run the command, and return the seconds."""
    started = time.monotonic()
    subprocess.run((sys.executable, "-c", _PROGRAM, *arguments), stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - started


def _check(fleet: Fleet, document: dict[str, Any]) -> None:
    """Check that all nodes and phones are there, and all problems that the fleet was created with."""
    assert len({row["node"] for row in document["nodes"]}) == fleet.nodes, f"{len(document['nodes'])} nodes"
    pods = [row for row in document["phones"] if row["pod"]]
    assert len(pods) == fleet.nodes * fleet.pods, f"{len(pods)} pods"
    states = {row["state"] for row in pods}
    assert states == ({"running", "unhealthy"} if fleet.dra else {"running"}), f"{states}"
    for kind, happened in (("plugin-absent", fleet.lost), ("unhealthy", fleet.unhealthy)):
        found = {problem["node"] for problem in document["problems"] if problem["kind"] == kind}
        expected = {objects.node_name(number) for number in range(fleet.nodes) if happened(number)}
        assert found == expected, f"{kind}: {found}"
    if fleet.dra:
        assert all(len(row["devices"]) == 1 for row in pods), "a pod has no phone"


if __name__ == "__main__":
    sys.exit(main())
