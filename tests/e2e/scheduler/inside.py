"""Runs in the sandbox: create a fleet, and measure how fast pods are bound with each kind of client limits."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import yaml

from aosp_plugin.framework.apiserver.client import ApiLimits
from aosp_plugin.framework.apiserver.protocol import NODES, RESOURCE_API, RESOURCE_SLICES
from tests.e2e.cluster import sandbox
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.common.report import say
from tests.e2e.fleet.objects import Fleet
from tests.e2e.kubelet.waiting import until
from tests.e2e.scheduler import allocations, burst, objects, usage, used
from tests.e2e.scheduler.objects import Variant
from tests.e2e.scheduler.results import Run

if TYPE_CHECKING:
    from aosp_plugin.framework.apiserver.client import ApiClient

_GATES: Final = ("DRAExtendedResource", "DRAConsumableCapacity", "DRADeviceTaints")
"""Feature gates that some variants need, and that are on by default from Kubernetes 1.36 on."""
_TOGETHER: Final = 8
_REQUEST: Final = ApiLimits(request=60.0)
_CLAIMS: Final = f"{RESOURCE_API}/namespaces/{objects.NAMESPACE}/resourceclaims"
_QPS: Final = 2000
"""Requests per second of a client with raised limits; twice as many in a burst."""
_QUIET: Final = 2.0
"""Seconds in which etcd has at most as many puts, if no pod causes any."""
_SETTLE: Final = 120.0


def main() -> int:
    """Write the results to a file, and return 1 if an allocation is wrong."""
    options = _options()
    sandbox.set_up()
    fleet = Fleet(options.nodes, options.phones, dra=Variant(options.variant).dra)
    control_plane = ControlPlane(options.programs, options.work / "control-plane", gates=_GATES)
    # The nodes are simulated: no kubelet renews their leases, or takes away the taint not-ready.
    control_plane.set_arguments("kube-apiserver", "--disable-admission-plugins=TaintNodesByCondition")
    started = time.monotonic()
    _create_fleet(control_plane, fleet, options)
    shutil.copytree(control_plane.data, options.work / "loaded")
    say(
        f"# {options.variant}: {fleet.nodes:,} nodes with {fleet.phones} phones each, of which {options.used} are used,"
        f" after {time.monotonic() - started:.0f} s"
    )
    for limits in options.limits.split(","):
        run = _measure_from(options.work / "loaded", control_plane, limits, options)
        with options.results.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")
    return 0


def _create_fleet(control_plane: ControlPlane, fleet: Fleet, options: argparse.Namespace) -> None:
    """Create nodes, slices and the pods with used phones, and stop all programs."""
    variant = Variant(options.variant)
    _set_limits(control_plane, options.work, "raised", options.percentage)
    control_plane.start_api_server()
    asyncio.run(_load(control_plane, fleet, variant))
    if options.used:
        control_plane.start()
        asyncio.run(_bind_one(control_plane, used.variant_of(variant)))
        _wait_quiet()
        for daemon in (control_plane.scheduler, control_plane.controller_manager):
            daemon.end()
        used.fill(fleet, used.variant_of(variant), options.used)
    control_plane.stop()


async def _bind_one(control_plane: ControlPlane, variant: Variant) -> None:
    """Create the pod whose copies have the used phones, and wait until it is bound."""
    async with control_plane.client(_REQUEST) as client:
        await client.create("/api/v1/namespaces", {"metadata": {"name": used.NAMESPACE}})
        account = f"/api/v1/namespaces/{used.NAMESPACE}/serviceaccounts/default"
        await asyncio.to_thread(until, lambda: control_plane.api.find(account), "the service account exists")
        if variant.dra:
            await client.create(_templates(used.NAMESPACE), objects.claim_template(variant))
        async with burst.Bindings(client, used.NAMESPACE) as bindings:
            await client.create(burst.pods_path(used.NAMESPACE), objects.pod(variant, used.NAME))
            await bindings.wait(used.NAME)


def _measure_from(loaded: Path, control_plane: ControlPlane, limits: str, options: argparse.Namespace) -> Run:
    """Start all programs with a copy of the fleet, and measure."""
    shutil.rmtree(control_plane.data)
    shutil.copytree(loaded, control_plane.data)
    _set_limits(control_plane, options.work, limits, options.percentage)
    control_plane.start()
    try:
        return asyncio.run(_measure(control_plane, limits, options))
    finally:
        control_plane.stop()


def _set_limits(control_plane: ControlPlane, directory: Path, limits: str, percentage: int) -> None:
    """Set the limits of the clients of scheduler and controller manager."""
    connection: dict[str, object] = {"kubeconfig": str(control_plane.scheduler_kubeconfig)}
    manager = ["--controllers=*,-node-lifecycle-controller"]
    if limits == "raised":
        connection |= {"qps": _QPS, "burst": 2 * _QPS}
        manager += [f"--kube-api-qps={_QPS}", f"--kube-api-burst={2 * _QPS}"]
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": connection,
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": percentage,
    }
    path = directory / "scheduler.yaml"
    path.write_text(yaml.safe_dump(config))
    allowed = "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics"
    control_plane.set_arguments("kube-scheduler", f"--config={path}", allowed)
    control_plane.set_arguments("kube-controller-manager", *manager)


async def _load(control_plane: ControlPlane, fleet: Fleet, variant: Variant) -> None:
    """Create the fleet."""
    limit = asyncio.Semaphore(_TOGETHER)

    async def create(number: int) -> None:
        async with limit:
            node = await client.create(NODES, objects.node(fleet, number))
            for body in objects.slices(fleet, variant, number, node["metadata"]["uid"]):
                await client.create(RESOURCE_SLICES, body)

    async with control_plane.client(_REQUEST) as client:
        if variant.dra:
            await client.create(f"{RESOURCE_API}/deviceclasses", objects.device_class(variant))
        async with asyncio.TaskGroup() as tasks:
            for number in range(fleet.nodes):
                tasks.create_task(create(number))


async def _measure(control_plane: ControlPlane, limits: str, options: argparse.Namespace) -> Run:
    variant = Variant(options.variant)
    load = os.getloadavg()[0]
    async with control_plane.client(_REQUEST) as client, burst.Bindings(client, objects.NAMESPACE) as bindings:
        if variant.dra:
            await client.create(_templates(objects.NAMESPACE), objects.claim_template(variant))
        await burst.one_at_a_time(client, variant, bindings, "first", 1)
        single = await burst.one_at_a_time(client, variant, bindings, "single", options.single)
        await asyncio.to_thread(_wait_quiet)
        before = await asyncio.to_thread(usage.read, control_plane)
        done = await burst.at_once(client, variant, bindings, options.pods, options.limit)
        await asyncio.to_thread(_wait_quiet)
        growth = (await asyncio.to_thread(usage.read, control_plane)).since(before)
        memory, peak = usage.memory((daemon.name, daemon.pid) for daemon in control_plane.daemons)
        if len(done.bound) == options.pods:
            await _check(client, variant, options)
    say(
        f"#   {limits} limits: {len(done.bound):,} pods bound after {done.bound[-1]:.1f} s"
        f" (created in {done.created:.1f} s); load average {load:.1f}"
    )
    return Run(
        kubernetes=control_plane.api.get("/version")["gitVersion"],
        nodes=options.nodes,
        phones=options.phones,
        used=options.used,
        pods=options.pods,
        variant=variant,
        limits=limits,
        percentage=options.percentage,
        load=load,
        single=single,
        created=done.created,
        bound=done.bound,
        latencies=done.latencies,
        cpu=dict(growth.cpu),
        memory=memory,
        peak=peak,
        requests=dict(growth.requests),
        etcd=dict(growth.etcd),
        phases=dict(growth.phases),
    )


async def _check(client: ApiClient, variant: Variant, options: argparse.Namespace) -> None:
    pods = (await client.list(burst.pods_path(objects.NAMESPACE))).items
    claims = (await client.list(_CLAIMS)).items if variant.dra else []
    problem = allocations.problem(variant, options.phones, options.used, pods, claims)
    assert not problem, problem


def _templates(namespace: str) -> str:
    return f"{RESOURCE_API}/namespaces/{namespace}/resourceclaimtemplates"


def _wait_quiet() -> None:
    """Wait until events and all else that follows pods are written."""

    def quiet() -> bool:
        before = usage.etcd_counters()["puts"]
        time.sleep(_QUIET)
        return usage.etcd_counters()["puts"] - before <= _QUIET

    until(quiet, "the control plane is quiet", seconds=_SETTLE)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--programs", "--work", "--results"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--variant", "--limits"):
        parser.add_argument(name, required=True)
    for name in ("--nodes", "--phones", "--used", "--pods", "--single", "--percentage"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--limit", type=float, required=True)
    parser.add_argument("--cgroups", default="")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
