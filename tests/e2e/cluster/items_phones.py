"""Items: phones that the scheduler places, and what a lost label does to them and to the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.ownership import owners
from tests.e2e.cluster.plugin import SIZE
from tests.e2e.cluster.scenes import INSUFFICIENT, LABEL, PHONES, prepare, undisturbed, waiting, web
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()


@item("A Deployment's phones have a phone each, at Android's paths; a container that restarts has the same one")
def deployment(cluster: Cluster) -> None:
    with web(cluster) as pods:
        before = owners(cluster, pods)
        name, (container, restarts) = pods[0]["metadata"]["name"], phones.container_of(pods[0])
        phones.end_container(cluster, name)

        def restarted() -> bool:
            now = phones.container_of(cluster.api.get(f"{phones.collection('Pod')}/{name}"))
            return now[0] != container and now[1] == restarts + 1

        until(restarted, f"the container of {name} has restarted")
        after = owners(cluster, phones.wait_running(cluster, "web", PHONES))
        assert after == before, f"before: {before}, after: {after}"


@item("Phones beyond the node's number are Pending with the scheduler's reason, and run as soon as devices appear")
def pending(cluster: Cluster) -> None:
    prepare(cluster)
    machine, total = cluster.machine, PHONES + 2
    phones.create(cluster, phones.deployment("many", total))
    phones.wait_running(cluster, "many", PHONES)
    waiting(cluster, "many", 2, INSUFFICIENT)
    machine.device_tool("create", "--stand-ins", "--count", str(total * SIZE))
    plugin.wait_allocatable(cluster, machine, total)
    owners(cluster, phones.wait_running(cluster, "many", total))
    phones.remove(cluster, "Deployment", "many")
    machine.device_tool("delete")
    machine.device_tool("create", "--stand-ins", "--count", str(DEVICES))
    plugin.wait_allocatable(cluster, machine, PHONES)


@item("The node's label removed: the plugin's pod goes, phones run on and restart; new ones wait until it is back")
def label(cluster: Cluster) -> None:
    machine = cluster.machine
    with web(cluster, PHONES - 1) as pods:
        with undisturbed(cluster, pods[1:]):
            before = owners(cluster, pods)
            cluster.kubectl("label", "node", machine.name, f"{LABEL}-")
            until(lambda: not plugin.pods(cluster), "the plugin's pod is gone")
            plugin.wait_allocatable(cluster, machine, 0)
            assert plugin.capacity(cluster, machine)[0] >= PHONES, "the kubelet keeps the capacity for 5 minutes"
            # The kubelet has kept the plugin's answer.
            name = pods[0]["metadata"]["name"]
            phones.end_container(cluster, name)
            path = f"{phones.collection('Pod')}/{name}"
            until(lambda: phones.container_of(cluster.api.get(path))[1] == 1, "the container has restarted")
            assert owners(cluster, phones.wait_running(cluster, "web", PHONES - 1)) == before
            phones.create(cluster, phones.pod("late"))
            waiting(cluster, "late", 1, INSUFFICIENT)
            cluster.kubectl("label", "node", machine.name, f"{LABEL}=true")
            late = phones.wait_running(cluster, "late", 1)
            assert len(owners(cluster, phones.running(cluster, "web") + late)) == PHONES
        phones.remove(cluster, "Pod", "late")
    plugin.uninstall(cluster)
