"""Three nodes: phones spread, a node is drained, a node dies, and what each node reports agrees with the cluster."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import invariants, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.ownership import owners
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.kubelet.waiting import PATIENCE, holds, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

item = Items()

APP: Final = "fleet"
EACH: Final = 4
"""Phones of a machine."""
GRACE: Final = 100.0
"""Seconds without a heartbeat until the node is NotReady (50, and some for a busy machine)."""
TOLERATION: Final = 20
"""Seconds for which the phones tolerate a node that is NotReady; 300 if the pod does not say."""


def _tolerating() -> list[dict[str, Any]]:
    """Return the tolerations of a phone that is to leave a dead node soon."""
    return [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": TOLERATION,
        }
        for key in ("not-ready", "unreachable")
    ]


def _on(pods: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str(pod["spec"]["nodeName"]) for pod in pods)


def _status(cluster: Cluster, machine: Machine) -> dict[str, Any]:
    """Return the document of the plugin's /status, which is on the loopback address of its pod."""
    name = plugin.pod_on(cluster, machine)["metadata"]["name"]
    words = ("exec", f"--namespace={plugin.NAMESPACE}", name, "--", "aosp-plugin", "status", "--json")
    document: dict[str, Any] = json.loads(cluster.kubectl(*words))
    return document


def _run(cluster: Cluster, count: int) -> list[dict[str, Any]]:
    """Have ``count`` phones on the three nodes, with the plugin; return their pods."""
    if not plugin.pods(cluster):
        plugin.install(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, EACH)
    path = f"{phones.collection('Deployment')}/{APP}"
    if cluster.api.find(path) is None:
        phones.create(cluster, phones.deployment(APP, count, tolerations=_tolerating()))
    cluster.api.patch(path, {"spec": {"replicas": count}})
    pods = phones.wait_running(cluster, APP, count)
    until(lambda: not _terminating(cluster), "the phones beyond that number are gone", seconds=2 * PATIENCE)
    return pods


@item("Phones of a Deployment spread over three nodes, each with devices of its own; the nodes have a phone for each")
def phones_spread(cluster: Cluster) -> None:
    """The scheduler's default scores spread the pods of a ReplicaSet; the 13th waits for want of devices."""
    pods = _run(cluster, 9)
    assert _on(pods) == {machine.name: 3 for machine in cluster.machines}, f"the phones are on {_on(pods)}"
    owners(cluster, pods)
    cluster.kubectl("scale", f"deployment/{APP}", "--replicas=13")
    pods = phones.wait_running(cluster, APP, 12)
    owners(cluster, pods)
    (waiting,) = [pod for pod in phones.of(cluster, APP) if pod["status"]["phase"] == "Pending"]
    until(lambda: f"3 Insufficient {PHONE}" in _current_reason(cluster, waiting), "the scheduler's reason")
    _run(cluster, 8)
    invariants.settle(cluster)


def _current_reason(cluster: Cluster, pod: dict[str, Any]) -> str:
    path = f"{phones.collection('Pod')}/{pod['metadata']['name']}"
    return phones.reason(cluster.api.get(path))


@item("Status and metrics of each node's plugin, read through the API server, agree with the Node objects")
def the_fleets_view_is_right(cluster: Cluster) -> None:
    """One device set less on one node, so that the nodes differ; then as before."""
    node = cluster.machines[1]
    _run(cluster, 8)
    free = min(invariants.observe(cluster).hosts[node.name].sets - _held(cluster, node))
    (node.root / "dev" / free).unlink()
    try:
        plugin.wait_allocatable(cluster, node, EACH - 1)
        for machine in cluster.machines:
            _compare(cluster, machine, unhealthy=int(machine is node))
    finally:
        node.nodes("create", "--stand-ins", "--count", "12")
    plugin.wait_allocatable(cluster, node, EACH)
    for machine in cluster.machines:
        _compare(cluster, machine, unhealthy=0)


def _held(cluster: Cluster, machine: Machine) -> set[str]:
    return set().union(*(invariants.observe(cluster).hosts[machine.name].allocated or {}).values())


def _compare(cluster: Cluster, machine: Machine, *, unhealthy: int) -> None:
    """Compare Node object, pods, metrics and status of a machine."""
    capacity, allocatable = plugin.capacity(cluster, machine)
    pods = {pod["metadata"]["name"] for pod in phones.of(cluster, APP) if pod["spec"].get("nodeName") == machine.name}

    def agree() -> bool:
        pod = plugin.pod_on(cluster, machine)
        metrics = {
            name: plugin.metric(cluster, pod, name, resource=PHONE)
            for name in ("devices_allocated", "kubelet_allocatable", "registered")
        }
        assert metrics == {
            "devices_allocated": len(pods),
            "kubelet_allocatable": allocatable,
            "registered": 1,
        }, f"{machine.name}: {metrics}, {len(pods)} pods, allocatable {allocatable}"
        status = _status(cluster, machine)
        assert status["node"] == machine.name, status["node"]
        (resource,) = status["resources"]
        counts = resource["counts"]
        assert (counts["total"], counts["healthy"], counts["unhealthy"]) == (capacity, allocatable, unhealthy), counts
        named = {holder["name"] for device in resource["devices"] for holder in device["pods"]}
        assert named == pods, f"{machine.name}: status names {named}, the pods are {pods}"
        return True

    until(agree, f"the plugin of {machine.name} agrees with the cluster", seconds=2 * PATIENCE)


@item("A drained node keeps the plugin, its phones run on the other nodes; uncordoned, it gets new ones")
def drained_node(cluster: Cluster) -> None:
    """8 phones are as many as the other two nodes have devices for."""
    node = cluster.machines[0]
    _run(cluster, 8)
    cluster.kubectl("drain", node.name, "--ignore-daemonsets", "--timeout=60s")
    try:
        pods = phones.wait_running(cluster, APP, 8)
        assert node.name not in _on(pods), f"the phones are on {_on(pods)}"
        owners(cluster, pods)
        assert plugin.pod_on(cluster, node)["status"]["phase"] == "Running", "the plugin was evicted"
        assert plugin.capacity(cluster, node) == (EACH, EACH), f"{plugin.capacity(cluster, node)}"
        invariants.settle(cluster)
    finally:
        cluster.kubectl("uncordon", node.name)
    pods = _run(cluster, 10)
    assert _on(pods)[node.name] == 2, f"the phones are on {_on(pods)}"
    owners(cluster, pods)


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
        assert plugin.capacity(cluster, node) == (EACH, EACH), "the Node object of a dead node lost its devices"
        holds(lambda: lost <= _names(cluster), "the phones are tolerated", seconds=TOLERATION / 4)
        until(lambda: _terminating(cluster) == lost, "the lost phones are Terminating", seconds=4 * PATIENCE)
        pods = phones.wait_running(cluster, APP, 6)
        assert node.name not in _on(pods), f"the phones are on {_on(pods)}"
        owners(cluster, pods)
        first = min(lost)
        cluster.kubectl("delete", "pod", first, "--force", "--grace-period=0")
        assert first not in _terminating(cluster), f"{first} is still there"
    finally:
        node.boot(cluster.parts.kubernetes)
        node.nodes("create", "--stand-ins", "--count", "12")
    cluster.wait_node(node)
    until(lambda: not _terminating(cluster), "the kubelet confirms the end of the other phones", seconds=4 * PATIENCE)
    plugin.wait_allocatable(cluster, node, EACH, seconds=4 * PATIENCE)
    invariants.settle(cluster)


def _names(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in phones.of(cluster, APP)}


def _terminating(cluster: Cluster) -> set[str]:
    pods = cluster.api.list(phones.collection("Pod"), labelSelector=f"app={APP}")
    return {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]}


@item("A phone that is deleted by force while its node is cut off goes on there: the cluster does not know of it")
def forced_deletion(cluster: Cluster) -> None:
    """What force deletion does: the API server forgets the pod, the container runs until the kubelet is back."""
    node = cluster.machines[1]
    _run(cluster, 6)
    pod = next(pod for pod in phones.of(cluster, APP) if pod["spec"]["nodeName"] == node.name)
    container = phones.container_of(pod)[0].removeprefix("containerd://")
    node.disconnect()
    try:
        cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
        phones.wait_running(cluster, APP, 6, seconds=4 * PATIENCE)
        assert container in node.runtime.running(), "the container of the deleted pod does not run"
    finally:
        node.connect()
    until(lambda: container not in node.runtime.running(), "the kubelet ends the container", seconds=4 * PATIENCE)
    cluster.wait_node(node)
    invariants.settle(cluster)


@item("The cluster without its phones and without the plugin has nothing of either left")
def nothing_is_left(cluster: Cluster) -> None:
    """All invariants hold without a plugin too: nothing is allocatable."""
    phones.remove(cluster, "Deployment", APP)
    plugin.uninstall(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, 0)
    invariants.settle(cluster)
