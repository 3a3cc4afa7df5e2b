"""Runs in the sandbox: start etcd and kube-apiserver, create the fleet, and measure the command."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from aosp_plugin.framework.apiserver.client import ApiLimits
from aosp_plugin.framework.apiserver.protocol import RESOURCE_API
from tests.e2e.cluster import sandbox
from tests.e2e.cluster.api import CORE, ApiError
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.common.report import say
from tests.e2e.fleet import objects
from tests.e2e.fleet.load import load
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROGRAM: Final = "import sys; from kubectl_phones.__main__ import main; sys.exit(main())"
_PATIENCE: Final = 120.0
_SELECTED: Final = {
    "everything": (),
    "one node": ("--node", objects.node_name(1)),
    "one namespace": ("--namespace", "tenant-1"),
    "problems": ("--unhealthy",),
}


class Measured(NamedTuple):
    """One run, in seconds."""

    wall: float
    client: float
    """CPU time of the command, with kubectl."""
    server: float
    """CPU time of kube-apiserver."""


def main() -> int:
    """Print the figures, and return 1 if a limit is exceeded or the output is wrong."""
    options = _options()
    fleet = objects.Fleet(options.nodes, options.phones, dra=options.api == "dra")
    sandbox.set_up()
    control_plane = ControlPlane(options.programs, options.work / "control-plane")
    control_plane.start_api_server()
    until(lambda: control_plane.api.find(f"{CORE}/namespaces/default"), "the namespace default exists")
    started = time.monotonic()
    asyncio.run(_load(control_plane, fleet))
    say(
        f"# {options.api}: {fleet.nodes:,} nodes with {fleet.phones:,} phones each, after "
        f"{time.monotonic() - started:.0f} s; load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs"
    )
    os.environ["PATH"] = f"{options.programs}:{os.environ['PATH']}"
    os.environ["KUBECONFIG"] = str(control_plane.kubeconfig)
    try:
        return _measure(control_plane.apiserver.pid, fleet, options.runs, options.limit)
    finally:
        control_plane.stop()


def _measure(server: int, fleet: objects.Fleet, runs: int, limit: float) -> int:
    median = 0.0
    for what, arguments in _SELECTED.items():
        measured = [_run(server, arguments)[0] for _ in range(runs)]
        walls = [each.wall for each in measured]
        say(
            f"#   {what + ':':15} median {statistics.median(walls):5.2f} s, {min(walls):.2f} to {max(walls):.2f} s; "
            f"CPU: command and kubectl {statistics.median(each.client for each in measured):.2f} s, "
            f"kube-apiserver {statistics.median(each.server for each in measured):.2f} s"
        )
        median = median or statistics.median(walls)  # of everything
    say(
        f"#   --help:         median {statistics.median(_run(server, ('--help',))[0].wall for _ in range(runs)):5.2f} s"
    )
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    say(f"#   the largest process of the command: {largest / 1024:.0f} MiB")
    _, errors, output = _run(server, ("--output", "json"))
    _check(fleet, json.loads(output), errors)
    if limit and median > limit:
        say(f"not ok - the median {median:.2f} s is longer than {limit:g} s")
        return 1
    return 0


def _run(server: int, arguments: Sequence[str]) -> tuple[Measured, str, str]:
    """Run the command, and return the figures, the errors and the output."""
    before, ticks = resource.getrusage(resource.RUSAGE_CHILDREN), _ticks(server)
    started = time.monotonic()
    result = subprocess.run((sys.executable, "-c", _PROGRAM, *arguments), capture_output=True, text=True, check=True)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    client = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(wall, client, (_ticks(server) - ticks) / os.sysconf("SC_CLK_TCK")), result.stderr, result.stdout


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _check(fleet: objects.Fleet, document: dict[str, object], errors: str) -> None:
    """Check that all nodes and phones are there, and all problems that the fleet was created with."""
    nodes, phones, problems = document["nodes"], document["phones"], document["problems"]
    assert isinstance(nodes, list)
    assert isinstance(phones, list)
    assert isinstance(problems, list)
    assert errors == "", errors
    assert len({row["node"] for row in nodes}) == fleet.nodes, f"{len(nodes)} nodes"
    pods = [row for row in phones if row["pod"]]
    assert len(pods) == fleet.nodes * (fleet.phones - 1), f"{len(pods)} pods"
    states = {row["state"] for row in pods}
    assert states == ({"running", "unhealthy"} if fleet.dra else {"running"}), f"{states}"
    for kind, happened in (("plugin-absent", objects.lost), ("unhealthy", objects.unhealthy)):
        found = {problem["node"] for problem in problems if problem["kind"] == kind}
        expected = {objects.node_name(number) for number in range(fleet.nodes) if happened(number)}
        assert found == expected, f"{kind}: {found}"
    if fleet.dra:
        assert all(len(row["devices"]) == 1 for row in pods), "a pod has no phone"


async def _load(control_plane: ControlPlane, fleet: objects.Fleet) -> None:
    async with control_plane.client(ApiLimits(request=_PATIENCE)) as client:
        await load(client, fleet)
    namespace, pod, _ = list(objects.phone_pods(fleet, fleet.nodes - 1))[-1]
    name = pod["metadata"]["name"]
    last = [f"{CORE}/namespaces/{namespace}/pods/{name}"]
    last += [f"{RESOURCE_API}/namespaces/{namespace}/resourceclaims/{name}-phone"] if fleet.dra else []
    for path in last:
        until(partial(_cached, control_plane, path), f"the API server has read {path}", seconds=_PATIENCE)


def _cached(control_plane: ControlPlane, path: str) -> bool:
    try:
        return bool(control_plane.api.get(path, resourceVersion="0"))
    except ApiError:
        return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--api", required=True)
    parser.add_argument("--cgroups", default="")
    for name in ("nodes", "phones", "runs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--limit", type=float, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
