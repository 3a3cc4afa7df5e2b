"""Three nodes with phones: what each node reports agrees with the cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import invariants, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import PHONES, prepare
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

item = Items()

APP: Final = "fleet"
COUNT: Final = 8


@item("Status and metrics of each node's plugin, read through the API server, agree with the Node objects")
def the_fleets_view_is_right(cluster: Cluster) -> None:
    """One device set less on one node, so that the nodes differ; then as before."""
    node = cluster.machines[1]
    prepare(cluster)
    phones.create(cluster, phones.deployment(APP, COUNT))
    phones.wait_running(cluster, APP, COUNT)
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


@item("The cluster without its phones and without the plugin has nothing of either left")
def nothing_is_left(cluster: Cluster) -> None:
    """All invariants hold without a plugin too: nothing is allocatable."""
    phones.remove(cluster, "Deployment", APP)
    plugin.uninstall(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, 0)
    invariants.settle(cluster)
