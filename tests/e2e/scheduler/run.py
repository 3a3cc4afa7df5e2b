"""Runs in the sandbox: create a fleet, and measure how fast pods are bound with each kind of client limits."""

from __future__ import annotations

import os
import re
import shutil
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.cluster.control_plane import ETCD, ControlPlane
from tests.e2e.cluster.dra import CLAIMS, CLASSES, TEMPLATES
from tests.e2e.cluster.phones import collection
from tests.e2e.cluster.watching import Watch
from tests.e2e.common.proc import processor_seconds, resident
from tests.e2e.common.report import PASSED, say
from tests.e2e.fleet import objects
from tests.e2e.fleet.load import load
from tests.e2e.fleet.objects import DRIVER, RESOURCE, Fleet
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.e2e.cluster.api import Api

REQUESTS: Final = ("nothing", "device-plugin", "claim", "extended-resource")
"""What a pod requests: a claim of a template and an extended resource are both served by DRA."""
HEAD: Final = (
    *("nodes", "pods request", "limits", "pods per second"),
    *("CPU per pod, ms", "API server, scheduler: most RSS, MiB", "writes per pod"),
)
_GATES: Final = ("DRAExtendedResource", "DRADeviceTaints")
"""Feature gates that claims need, and that are on by default from Kubernetes 1.36 on."""
_TOGETHER: Final = 8
_QPS: Final = 2000
"""Requests per second of a client with raised limits; twice as many in a burst."""
_QUIET: Final = 2.0
"""Seconds in which etcd has at most as many puts, if no pod causes any."""
_SETTLE: Final = 120.0
_MIDDLE: Final = 0.8
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
_REQUEST: Final = re.compile(r'^apiserver_request_total\{.*resource="\w+",.*verb="(\w+)".*\} (\S+)$', re.MULTILINE)


def main(work: Path, _cgroups: str, programs: Path, options: Namespace, nodes: int, request: str) -> int:
    """Print a row of the table for each kind of limits. Raises AssertionError if an allocation is wrong."""
    dra = request in {"claim", "extended-resource"}
    fleet = Fleet(nodes, options.phones, pods=0, dra=dra)
    plane = ControlPlane(programs, work / "control-plane", gates=_GATES)
    # The nodes are simulated: no kubelet renews their leases, or takes away the taint not-ready.
    plane.set_arguments("kube-apiserver", "--disable-admission-plugins=TaintNodesByCondition")
    plane.start_api_server()
    load(plane.api, fleet)
    if dra:
        extended = {"extendedResourceName": RESOURCE} if request == "extended-resource" else {}
        spec = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}], **extended}
        plane.api.create(CLASSES, {"metadata": {"name": DRIVER}, "spec": spec})
    plane.stop()
    shutil.copytree(plane.data, work / "loaded")
    for limits in options.limits:
        shutil.rmtree(plane.data)
        shutil.copytree(work / "loaded", plane.data)
        _set_limits(plane, work, limits)
        plane.start()
        row = _measure(plane, fleet, request, options)
        say(f"| {nodes:,} | {request} | {limits} | {' | '.join(row)} |")
        plane.stop()
    return PASSED


def _set_limits(plane: ControlPlane, directory: Path, limits: str) -> None:
    """Set the limits of the clients of scheduler and controller manager."""
    connection: dict[str, object] = {"kubeconfig": str(plane.scheduler_kubeconfig)}
    manager = ["--controllers=*,-node-lifecycle-controller"]
    if limits == "raised":
        connection |= {"qps": _QPS, "burst": 2 * _QPS}
        manager += [f"--kube-api-qps={_QPS}", f"--kube-api-burst={2 * _QPS}"]
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": connection,
        "leaderElection": {"leaderElect": False},
    }
    path = directory / "scheduler.yaml"
    path.write_text(yaml.safe_dump(config))
    plane.set_arguments("kube-scheduler", f"--config={path}")
    plane.set_arguments("kube-controller-manager", *manager)


def _measure(plane: ControlPlane, fleet: Fleet, request: str, options: Namespace) -> list[str]:
    """Create all pods at once, wait until they are bound and the control plane is quiet; return the cells of a row."""
    api, count = plane.api, int(options.pods)
    if request == "claim":
        requests = [{"name": "phone", "exactly": {"deviceClassName": DRIVER}}]
        template = {"metadata": {"name": "phone"}, "spec": {"spec": {"devices": {"requests": requests}}}}
        api.create(TEMPLATES, template)
    _bind(api, request, ["first"], options.limit)
    _wait_quiet()
    before, written = [processor_seconds(daemon.pid) for daemon in plane.daemons], _writes(api)
    bound = _bind(api, request, [f"burst-{number}" for number in range(count)], options.limit)
    _wait_quiet()
    used = [processor_seconds(daemon.pid) - then for daemon, then in zip(plane.daemons, before, strict=True)]
    writes = (_writes(api) - written) / count
    claims = api.list(CLAIMS) if fleet.dra else []
    problem = wrong(api.list(collection("Pod")), claims)
    assert not problem, problem
    if len(bound) < count:
        say(f"# only {len(bound):,} of {count:,} pods are bound; load average {os.getloadavg()[0]:.1f}")
    memory = [resident(daemon.pid, "VmHWM") for daemon in (plane.apiserver, plane.scheduler)]
    return [
        f"{middle_rate(bound):.0f}",
        f"{1000 * sum(used) / count:.0f}",
        ", ".join(f"{value:,.0f}" for value in memory),
        f"{writes:.1f}",
    ]


def _bind(api: Api, request: str, names: Sequence[str], limit: float) -> list[float]:
    """Create pods as fast as the API server accepts them, and wait until all are bound or a time limit is reached.

    Returns the times at which pods were bound.
    """
    path = collection("Pod")
    with Watch(api, path) as watch, ThreadPoolExecutor(_TOGETHER) as executor:

        def bound() -> list[float]:
            times: dict[str, float] = {}
            for event in watch.events:
                if event.object["spec"].get("nodeName"):
                    times.setdefault(event.name, event.at)
            return sorted(times.values())

        list(executor.map(lambda name: api.create(path, pod(request, name)), names))
        end = time.time() + limit
        until(lambda: len(bound()) >= len(names) or time.time() > end, "pods are bound", seconds=2 * limit)
        return bound()


def pod(request: str, name: str) -> dict[str, Any]:
    """Return a pod with a request."""
    made = objects.phone(name, dra=request in {"nothing", "claim"}, template="phone" if request == "claim" else "")
    del made["metadata"]["ownerReferences"]  # a pod whose owner does not exist is deleted
    return made


def middle_rate(times: Sequence[float]) -> float:
    """Return events per second within the middle 80 % of ascending times; 0 with fewer than ten."""
    edge = round(len(times) * (1 - _MIDDLE) / 2)
    if not edge:
        return 0.0
    middle = times[edge:-edge]
    seconds = middle[-1] - middle[0]
    return (len(middle) - 1) / seconds if seconds else 0.0


def wrong(pods: Sequence[Mapping[str, Any]], claims: Sequence[Mapping[str, Any]]) -> str:
    """Return what is wrong with the pods that are bound and with their claims; empty if all is right."""
    devices = Counter(
        (result["pool"], result["device"])
        for claim in claims
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    )
    if twice := [device for device, count in devices.items() if count > 1]:
        return f"allocated twice: {twice}"
    nodes = Counter(pod["spec"].get("nodeName") for pod in pods)
    if claims and devices.total() != nodes.total() - nodes[None]:
        return f"{nodes.total() - nodes[None]} pods are bound, with {devices.total()} devices"
    return ""


def _writes(api: Api) -> float:
    """Return the writing requests that the API server has answered."""
    found = _REQUEST.findall(api.text("GET", "/metrics", seconds=60))
    return sum(float(count) for verb, count in found if verb in _WRITES)


def _wait_quiet() -> None:
    """Wait until events and all else that follows pods are written."""

    def puts() -> float:
        with urllib.request.urlopen(f"{ETCD}/metrics", timeout=60) as answer:  # noqa: S310 - of this sandbox
            found = re.search(r"^etcd_mvcc_put_total (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found is not None, "etcd counts no puts"
        return float(found[1])

    def quiet() -> bool:
        before = puts()
        time.sleep(_QUIET)
        return puts() - before <= _QUIET

    until(quiet, "the control plane is quiet", seconds=_SETTLE)
