"""Three nodes: phones spread, a node dies, and what each node reports agrees with the cluster."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import invariants, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.ownership import owners
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import INSUFFICIENT, PHONES, prepare, waiting
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

item = Items()

APP: Final = "fleet"
GRACE: Final = 100.0
"""Seconds without a heartbeat until the node is NotReady (50, and some for a busy machine)."""
TOLERATIONS: Final = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20}
    for key in ("not-ready", "unreachable")
]
"""Those of a phone that is to leave a dead node soon; without them it stays for 300 s."""


def _on(pods: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(str(pod["spec"]["nodeName"]) for pod in pods)


def _run(cluster: Cluster, count: int) -> list[dict[str, Any]]:
    """Have ``count`` phones on the three nodes, with the plugin; return their pods."""
    prepare(cluster)
    path = f"{phones.collection('Deployment')}/{APP}"
    if cluster.api.find(path) is None:
        phones.create(cluster, phones.deployment(APP, count, tolerations=TOLERATIONS))
    cluster.api.patch(path, {"spec": {"replicas": count}})
    pods = phones.wait_running(cluster, APP, count)
    until(lambda: not _terminating(cluster), "the phones beyond that number are gone", seconds=2 * PATIENCE)
    return pods


def _terminating(cluster: Cluster) -> set[str]:
    pods = cluster.api.list(phones.collection("Pod"), labelSelector=f"app={APP}")
    return {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]}


@item("Phones of a Deployment spread over three nodes, each with devices of its own; the 13th waits")
def phones_spread(cluster: Cluster) -> None:
    """The scheduler's default scores spread the pods of a ReplicaSet."""
    pods = _run(cluster, 9)
    assert _on(pods) == {machine.name: 3 for machine in cluster.machines}, f"the phones are on {_on(pods)}"
    owners(cluster, pods)
    cluster.kubectl("scale", f"deployment/{APP}", "--replicas=13")
    owners(cluster, phones.wait_running(cluster, APP, 12))
    waiting(cluster, APP, 1, f"3 {INSUFFICIENT}")
    _run(cluster, 8)
    invariants.settle(cluster)


@item("Status and metrics of each node's plugin, read through the API server, agree with the Node objects")
def the_fleets_view_is_right(cluster: Cluster) -> None:
    """One device set less on one node, so that the nodes differ; then as before."""
    node = cluster.machines[1]
    _run(cluster, 8)
    host = invariants.observe(cluster).hosts[node.name]
    free = min(host.sets.difference(*(host.allocated or {}).values()))
    (node.root / "dev" / free).unlink()
    try:
        plugin.wait_allocatable(cluster, node, PHONES - 1)
        for machine in cluster.machines:
            _compare(cluster, machine, unhealthy=int(machine is node))
    finally:
        node.nodes("create", "--stand-ins", "--count", "12")
    plugin.wait_allocatable(cluster, node, PHONES)
    _compare(cluster, node, unhealthy=0)


def _compare(cluster: Cluster, machine: Machine, *, unhealthy: int) -> None:
    """Compare Node object, pods, metrics and status of a machine."""
    capacity, allocatable = plugin.capacity(cluster, machine)
    pods = {pod["metadata"]["name"] for pod in phones.of(cluster, APP) if pod["spec"].get("nodeName") == machine.name}

    def agree() -> bool:
        pod = plugin.pod_on(cluster, machine)
        names = ("devices_allocated", "kubelet_allocatable", "registered")
        metrics = [plugin.metric(cluster, pod, name, resource=PHONE) for name in names]
        assert metrics == [len(pods), allocatable, 1], f"{machine.name}: {metrics}, {pods}, allocatable {allocatable}"
        words = ("exec", f"--namespace={plugin.NAMESPACE}", pod["metadata"]["name"], "--")
        status = json.loads(cluster.kubectl(*words, "aosp-plugin", "status", "--json"))
        assert status["node"] == machine.name, status["node"]
        (resource,) = status["resources"]
        counts = resource["counts"]
        assert (counts["total"], counts["healthy"], counts["unhealthy"]) == (capacity, allocatable, unhealthy), counts
        named = {holder["name"] for device in resource["devices"] for holder in device["pods"]}
        assert named == pods, f"{machine.name}: status names {named}, the pods are {pods}"
        return True

    until(agree, f"the plugin of {machine.name} agrees with the cluster", seconds=2 * PATIENCE)


@item("A dead node's phones are replaced when their toleration has passed; until it is back they are Terminating")
def dead_node(cluster: Cluster) -> None:
    """The Node object keeps its numbers; no kubelet confirms the end of the pods, so they stay Terminating."""
    node = cluster.machines[2]
    _run(cluster, 6)
    lost = {pod["metadata"]["name"] for pod in phones.of(cluster, APP) if pod["spec"]["nodeName"] == node.name}
    assert lost, f"{node.name} has no phone"
    node.shut_down()
    try:
        cluster.wait_node(node, ready=False, seconds=GRACE)
        assert plugin.capacity(cluster, node) == (PHONES, PHONES), "the Node object of a dead node lost its devices"
        until(lambda: _terminating(cluster) == lost, "the lost phones are Terminating", seconds=4 * PATIENCE)
        pods = phones.wait_running(cluster, APP, 6)
        assert node.name not in _on(pods), f"the phones are on {_on(pods)}"
        owners(cluster, pods)
    finally:
        node.boot(cluster.parts.kubernetes)
        node.nodes("create", "--stand-ins", "--count", "12")
    cluster.wait_node(node)
    until(lambda: not _terminating(cluster), "the kubelet confirms the end of the other phones", seconds=4 * PATIENCE)
    plugin.wait_allocatable(cluster, node, PHONES, seconds=4 * PATIENCE)
    invariants.settle(cluster)


@item("The cluster without its phones and without the plugin has nothing of either left")
def nothing_is_left(cluster: Cluster) -> None:
    """All invariants hold without a plugin too: nothing is allocatable."""
    phones.remove(cluster, "Deployment", APP)
    plugin.uninstall(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, 0)
    invariants.settle(cluster)
