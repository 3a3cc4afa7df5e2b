"""What the plugin writes for its Node: Events, and the end of a startup taint."""

import re
from typing import Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.scenes import PHONES, without
from tests.e2e.common.waiting import holds, until
from tests.e2e.kubelet.pods import PREFIX

KEY: Final = "aosp.io/starting"
OTHER: Final = "example.com/maintenance"
ROLE: Final = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{plugin.NAME}-node"
EVENTS: Final = f"{CORE}/namespaces/default/events"


def taints(cluster: Cluster) -> set[str]:
    """Return the keys of the taints of the first machine's Node object."""
    return {taint["key"] for taint in cluster.api.get(f"{CORE}/nodes/{cluster.machine.name}")["spec"].get("taints", [])}


def events(cluster: Cluster, reason: str) -> int:
    """Return the number of the plugin's Events on the first machine's Node with a reason."""
    selector = f"involvedObject.kind=Node,involvedObject.name={cluster.machine.name}"
    found = cluster.api.list(EVENTS, fieldSelector=selector)
    return sum(each["source"].get("component") == plugin.NAME and each["reason"] == reason for each in found)


def ensure(cluster: Cluster) -> None:
    """Install the plugin with Events and the startup taint unless an earlier test has."""
    if not plugin.pods(cluster) or not cluster.api.find(ROLE):
        plugin.install(cluster, plugin.values(node_events=True, startup_taint=KEY))
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)


def test_taint_removed(cluster: Cluster) -> None:
    """A kubelet registers its Node with the startup taint; it goes when the plugin has devices, which pods await."""
    machine = cluster.machine
    plugin.uninstall(cluster)
    cluster.kubectl("delete", "node", machine.name)
    machine.kubelet.end()
    machine.configuration["registerWithTaints"] = [
        {"key": key, "value": "", "effect": "NoSchedule"} for key in (KEY, OTHER)
    ]
    machine.start_kubelet()
    cluster.wait_node(machine)
    assert {KEY, OTHER} <= taints(cluster), taints(cluster)
    cluster.kubectl("label", "node", machine.name, "aosp.io/binder=true", "--overwrite")
    machine.run("sh", "-c", f"rm /dev/{PREFIX}*")
    plugin.install(cluster, plugin.values(node_events=True, startup_taint=KEY))
    toleration = {"key": OTHER, "operator": "Exists"}
    waiting = phones.pod("waiting")
    waiting["spec"]["tolerations"] = [toleration]
    phones.create(cluster, waiting)
    holds(lambda: {KEY, OTHER} <= taints(cluster), "the taint stays while there is no device", seconds=15)
    machine.create_devices()
    until(lambda: KEY not in taints(cluster), "the taint is removed", seconds=60)
    assert OTHER in taints(cluster), "another taint is gone"
    assert plugin.capacity(cluster, machine) == (PHONES, PHONES), "it was removed before the devices are allocatable"
    phones.wait_running(cluster, "waiting", 1)
    assert '"startup taint removed"' in plugin.log(cluster)
    phones.remove(cluster, "Pod", "waiting")
    machine.kubelet.end()
    machine.configuration.pop("registerWithTaints")
    machine.start_kubelet()
    cluster.kubectl("taint", "node", machine.name, f"{OTHER}-")


def test_devices_lost(cluster: Cluster) -> None:
    """Devices that vanish are an Event in `kubectl describe node`, with reason and names; so is their return."""
    ensure(cluster)
    phone = f"{PREFIX}0"
    lost, recovered = events(cluster, "DevicesLost"), events(cluster, "DevicesRecovered")
    with without(cluster, phone):
        until(lambda: events(cluster, "DevicesLost") > lost, "the loss is an Event", seconds=90)
    until(lambda: events(cluster, "DevicesRecovered") > recovered, "the return is an Event", seconds=90)
    text = cluster.kubectl("describe", "node", cluster.machine.name).partition("\nEvents:")[2]
    lines = [line for line in text.splitlines() if plugin.NAME in line]
    expected = f"1 device of {plugin.PHONE} lost: 1 incomplete ({phone}); {PHONES - 1} of {PHONES} are healthy"
    found = rf"Warning +DevicesLost +\S+ +{plugin.NAME} +{re.escape(expected)}"
    assert any(re.search(found, line) for line in lines), lines
    assert any("Normal" in line and "DevicesRecovered" in line for line in lines), lines


def test_removed(cluster: Cluster) -> None:
    """`helm uninstall` leaves no right and no policy."""
    ensure(cluster)
    plugin.uninstall(cluster)
    assert cluster.api.find(ROLE) is None
    kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
    assert plugin.NAME not in cluster.kubectl("get", kinds, "--output=name")
    assert plugin.NAME not in cluster.kubectl("get", "roles,rolebindings", "--namespace=default", "--output=name")
