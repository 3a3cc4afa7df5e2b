"""Phones that the scheduler places, and what a lost label does to them and to the plugin."""

import pytest

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.phones import owners
from tests.e2e.cluster.plugin import SIZE
from tests.e2e.cluster.scenes import INSUFFICIENT, LABEL, PHONES, prepare, undisturbed, waiting, web
from tests.e2e.common.waiting import until

pytestmark = pytest.mark.core


def test_deployment(cluster: Cluster) -> None:
    """A Deployment's phones have a phone each, at Android's paths; a container that restarts has the same one."""
    with web(cluster) as pods:
        before = owners(cluster, pods)
        phones.restart_container(cluster, pods[0]["metadata"]["name"])
        after = owners(cluster, phones.wait_running(cluster, "web", PHONES))
        assert after == before, f"before: {before}, after: {after}"


def test_pending(cluster: Cluster) -> None:
    """Phones beyond the node's number are Pending with the scheduler's reason, and run as soon as devices appear."""
    prepare(cluster)
    machine, total = cluster.machine, PHONES + 2
    phones.create(cluster, phones.deployment("many", total))
    phones.wait_running(cluster, "many", PHONES)
    waiting(cluster, "many", 2, INSUFFICIENT)
    machine.create_devices(total * SIZE)
    plugin.wait_allocatable(cluster, machine, total)
    owners(cluster, phones.wait_running(cluster, "many", total))
    phones.remove(cluster, "Deployment", "many")
    machine.device_tool("delete")
    machine.create_devices()
    plugin.wait_allocatable(cluster, machine, PHONES)


def test_label(cluster: Cluster) -> None:
    """The node's label removed: the plugin's pod goes, phones run on and restart; new ones wait until it is back."""
    machine = cluster.machine
    with web(cluster, PHONES - 1) as pods:
        with undisturbed(cluster, pods[1:]):
            before = owners(cluster, pods)
            cluster.kubectl("label", "node", machine.name, f"{LABEL}-")
            until(lambda: not plugin.pods(cluster), "the plugin's pod is gone")
            plugin.wait_allocatable(cluster, machine, 0)
            assert plugin.capacity(cluster, machine)[0] >= PHONES, "the kubelet keeps the capacity for 5 minutes"
            # The kubelet has kept the plugin's answer.
            phones.restart_container(cluster, pods[0]["metadata"]["name"])
            assert owners(cluster, phones.wait_running(cluster, "web", PHONES - 1)) == before
            phones.create(cluster, phones.pod("late"))
            waiting(cluster, "late", 1, INSUFFICIENT)
            cluster.kubectl("label", "node", machine.name, f"{LABEL}=true")
            late = phones.wait_running(cluster, "late", 1)
            assert len(owners(cluster, phones.running(cluster, "web") + late)) == PHONES
        phones.remove(cluster, "Pod", "late")
    plugin.uninstall(cluster)
