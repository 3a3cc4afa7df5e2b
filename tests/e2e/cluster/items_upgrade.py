"""Items: Kubernetes is upgraded under running phones, first the control plane and then the kubelet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.history import NodeHistory
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_rollout import (
    RUNNING,
    free_phone,
    registrations,
    restart_plugin,
    rollout,
    start,
    surge_with_fewer_devices,
    values,
)
from tests.e2e.cluster.ownership import healthy, owners
from tests.e2e.cluster.scenes import PHONES
from tests.e2e.common.report import say
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.waiting import holds, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

item = Items()

SETTLED: Final = 30.0
"""Seconds for which nothing may change after an upgrade."""


def _version(programs: Path) -> str:
    """Return the version of the programs in a directory, such as v1.34.4."""
    return run(str(programs / "kubelet"), "--version").split()[-1]


def _newest(cluster: Cluster) -> Path:
    assert cluster.parts.newest is not None, "the newest Kubernetes is missing"
    return cluster.parts.newest


def _containers(pods: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """Return container and restarts of each pod, by the pod's UID."""
    return {pod["metadata"]["uid"]: phones.container_of(pod) for pod in pods}


@item("The control plane is upgraded to the newest version: phones and plugin run on, and phones start")
def control_plane(cluster: Cluster) -> None:
    start(cluster)
    restarted = phones.wait_running(cluster, "web", RUNNING)[0]["metadata"]["name"]
    cluster.kubectl("exec", restarted, "--", "/bin/busybox", "kill", "1")  # a container that is not the pod's first
    until(lambda: sum(phones.container_of(pod)[1] for pod in phones.running(cluster, "web")) == 1, "it has restarted")
    pods = phones.wait_running(cluster, "web", RUNNING)
    before, held, own = _containers(pods), owners(cluster, pods), _containers(plugin.pods(cluster))
    started = time.monotonic()
    cluster.control_plane.stop()
    cluster.control_plane.use(_newest(cluster))
    cluster.control_plane.start()
    say(f"# the control plane was replaced within {time.monotonic() - started:.0f} s")
    version = cluster.api.get("/version")["gitVersion"]
    assert version == _version(_newest(cluster)), version
    cluster.wait_node(cluster.machine)
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    free_phone(cluster)
    now = phones.running(cluster, "web")
    assert _containers(now) == before, f"before: {before}, now: {_containers(now)}"
    assert owners(cluster, now) == held
    assert _containers(plugin.pods(cluster)) == own, "the plugin has restarted"


@item("The kubelet is upgraded to the newest version: phones keep containers and devices, the plugin registers again")
def kubelet(cluster: Cluster) -> None:
    for machine in cluster.machines:
        _replace_kubelet(cluster, machine, _newest(cluster))


@item("maxSurge with the newest kubelet: it has the devices all the time")
def surge(cluster: Cluster) -> None:
    start(cluster, values(surge=True))
    for _ in range(2):
        with rollout(cluster, "rollout restart with maxSurge and the newest kubelet") as done:
            restart_plugin(cluster)
        assert not done.gaps, f"{done.gaps}"
        assert not done.history.without_devices(), f"{done.history}"
    free_phone(cluster)


@item("The kubelet is replaced by the version before the upgrade: phones keep containers and devices")
def kubelet_back(cluster: Cluster) -> None:
    start(cluster, values(surge=True))
    _replace_kubelet(cluster, cluster.machine, cluster.parts.kubernetes)
    _replace_kubelet(cluster, cluster.machine, _newest(cluster))


@item("maxSurge with the newest kubelet and a configuration of fewer devices: the kubelet has the new devices")
def surge_fewer(cluster: Cluster) -> None:
    surge_with_fewer_devices(cluster)


def _replace_kubelet(cluster: Cluster, machine: Machine, programs: Path) -> None:
    """Restart a kubelet with other programs on the same files, and check that phones and plugin run on."""
    pods = phones.wait_running(cluster, "web", RUNNING)
    before, held, own = _containers(pods), owners(cluster, pods), _containers(plugin.pods(cluster))
    registered = registrations(machine)
    with NodeHistory(cluster, machine) as history:
        machine.kubelet.end()
        started = time.monotonic()
        machine.use(programs)
        machine.start_kubelet()
        until(lambda: registrations(machine) > registered, "the plugin has registered again", seconds=60)
        until(lambda: len(healthy(machine)) == PHONES, "the kubelet has the devices")
        ready = time.monotonic() - started
        info = f"{CORE}/nodes/{machine.name}"
        version = _version(programs)
        until(
            lambda: cluster.api.get(info)["status"]["nodeInfo"]["kubeletVersion"] == version,
            "the Node object has the version",
        )
        cluster.wait_node(machine)
        plugin.wait_allocatable(cluster, machine, PHONES)

        def unchanged() -> bool:
            now = _containers(phones.running(cluster, "web"))
            assert now == before, f"phones before: {before}, now: {now}"
            assert _containers(plugin.pods(cluster)) == own, "the plugin has restarted"
            return True

        until(unchanged, "phones and plugin run on")
        holds(unchanged, "phones and plugin run on", seconds=SETTLED)
        say(f"# kubelet {version}: has the devices {ready:.1f} s after its start; the Node object: {history}")
    assert owners(cluster, phones.running(cluster, "web")) == held, "a phone has changed"
    free_phone(cluster)
