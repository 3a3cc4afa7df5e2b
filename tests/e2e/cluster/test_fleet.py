"""Three nodes with phones: what each node reports agrees with the cluster."""

from typing import Final

import pytest

from tests.e2e.cluster import invariants, phones, plugin, test_kubectl_phones
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import PHONES, prepare, undisturbed
from tests.e2e.common.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("three_nodes")

APP: Final = "fleet"
COUNT: Final = 8
KIND: Final = "aosp.io/phones"
_UNREADY: Final = "node.kubernetes.io/not-ready:NoExecute"
"""The taint of a node that is not Ready, as kubectl prints it; pods of the chart that end do not tolerate it."""


def test_kinds(cluster: Cluster) -> None:
    """An upgrade to kinds of nodes: each has its number of phones, also on a node without a network plugin.

    Phones run on. A node of no kind has no plugin.
    """
    prepare(cluster)
    small, large, other = cluster.machines
    nodes = []
    for machine, name, config in ((small, "small", {}), (large, "large", {"replicas": 2})):
        cluster.kubectl("label", "node", machine.name, f"{KIND}={name}")
        nodes.append({"name": name, "nodeSelector": {KIND: name}, "config": config})
    phones.create(cluster, phones.deployment("web", 2, nodeSelector={KIND: "small"}))
    network = large.directory / "runtime" / "cni" / "pods.conflist"
    with undisturbed(cluster, phones.wait_running(cluster, "web", 2)):
        removed = network.rename(network.with_suffix(".removed"))
        cluster.wait_node(large, ready=False)
        # Pods of `helm test` and of the chart's check would wait for ever if the scheduler bound them to this node now.
        until(lambda: _UNREADY in cluster.kubectl("describe", "node", large.name), "no pod is bound to it")
        cluster.helm("test", plugin.NAME, f"--namespace={plugin.NAMESPACE}", "--timeout=60s")
        plugin.release(cluster, plugin.VALUES | {"nodes": nodes, "hostNetwork": True})
        for machine, count in ((small, PHONES), (large, 2 * PHONES), (other, 0)):
            plugin.wait_allocatable(cluster, machine, count)
        removed.rename(network)
        cluster.wait_node(large)
        tested = cluster.helm("test", plugin.NAME, f"--namespace={plugin.NAMESPACE}", "--timeout=60s")
        assert tested.count("Phase:          Succeeded") == len(nodes), tested
    rows = test_kubectl_phones.show(cluster).document["nodes"]
    ready = {row["node"]: row["phones"] for row in rows if row["plugin"] == "ready"}
    assert ready == {small.name: PHONES, large.name: 2 * PHONES}, f"{rows}"
    phones.remove(cluster, "Deployment", "web")
    cluster.kubectl("label", "node", "--all", f"{KIND}-")
    plugin.uninstall(cluster)


def test_the_fleets_view_is_right(cluster: Cluster) -> None:
    """Status and metrics of each node's plugin, read through the API server, agree with the Node objects.

    One device set less on one node, so that the nodes differ; then as before.
    """
    node = cluster.machines[1]
    prepare(cluster)
    phones.run(cluster, phones.deployment(APP, COUNT))
    host = invariants.observe(cluster).hosts[node.name]
    free = min(host.sets.difference(*(host.allocated or {}).values()))
    (node.root / "dev" / free).unlink()
    try:
        plugin.wait_allocatable(cluster, node, PHONES - 1)
        for machine in cluster.machines:
            _compare(cluster, machine, unhealthy=int(machine is node))
    finally:
        node.create_devices()
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
        status = plugin.status(cluster, machine)
        assert status["node"] == machine.name, status["node"]
        (resource,) = status["resources"]
        counts = resource["counts"]
        assert (counts["total"], counts["healthy"], counts["unhealthy"]) == (capacity, allocatable, unhealthy), counts
        named = {holder["name"] for device in resource["devices"] for holder in device["pods"]}
        assert named == pods, f"{machine.name}: status names {named}, the pods are {pods}"
        return True

    until(agree, f"the plugin of {machine.name} agrees with the cluster", seconds=2 * PATIENCE)


def test_nothing_is_left(cluster: Cluster) -> None:
    """The cluster without its phones and without the plugin has nothing of either left.

    All invariants hold without a plugin too: nothing is allocatable.
    """
    phones.remove(cluster, "Deployment", APP)
    plugin.uninstall(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, 0)
    invariants.settle(cluster)
