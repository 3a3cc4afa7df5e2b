"""Driver and kubelet fail while pods with claims run, and what the driver keeps: devices and files are lost."""

from typing import Final

import pytest

from aosp_plugin.framework.dra.slices import driver_name
from tests.e2e.cluster import dra, outside, phones, plugin, watching
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.dra import Undisturbed
from tests.e2e.cluster.scenes import PHONES, RUNNING, events, kill_plugin, restart_plugin, without
from tests.e2e.common.waiting import PATIENCE, holds, until

HANDSET: Final = "aosp.io/handset"
"""The other name of the resource."""


def test_driver_killed(cluster: Cluster, pods: Undisturbed) -> None:
    """The driver is killed: pods with claims run on, the slices stay, one socket is left, and new pods run."""
    names = dra.sockets(cluster.machine)
    history = watching.of_slices(cluster, cluster.machine)
    kill_plugin(cluster, cluster.machine)
    phones.run(cluster, dra.pod("after"))
    phones.remove(cluster, "Pod", "after")
    assert not history.events()
    after = dra.sockets(cluster.machine)
    assert len(after) == len(names), f"sockets: {after}, before: {names}"
    assert not {*after} & {*names}, f"a socket has the old name: {after}"
    pods.check()
    pods.end()


def test_rolling_update(cluster: Cluster, pods: Undisturbed) -> None:
    """A rolling update: a pod that is created when the rollout is complete runs without a failed Prepare."""
    restart_plugin(cluster)
    (pod,) = phones.run(cluster, dra.pod("updated"))
    errors = [text for reason, text in events(cluster, pod) if reason == "FailedPrepareDynamicResources"]
    assert not errors, errors
    phones.remove(cluster, "Pod", "updated")
    pods.check()
    pods.end()


def test_unhealthy(cluster: Cluster, pods: Undisturbed) -> None:
    """A device of a running pod vanishes: it is tainted, new pods wait, and the pod runs on."""
    machine = cluster.machine
    name, (_, phone) = min(pods.owners.items())
    path = f"{phones.collection('Pod')}/{name}"
    with without(cluster, phone):
        until(lambda: dra.devices(cluster, machine)[phone].get("taints"), "the device has a taint")
        (taint,) = dra.devices(cluster, machine)[phone]["taints"]
        assert (taint["key"], taint["effect"]) == (f"{dra.DRIVER}/unhealthy", "NoSchedule"), taint
        phones.run(cluster, dra.deployment("more", PHONES - RUNNING))
        cluster.api.delete(path)
        until(lambda: cluster.api.find(path) is None, f"{name} is gone", seconds=2 * PATIENCE)
        # Its replacement would fit on the device that it had, if that had no taint.
        holds(lambda: len(phones.running(cluster, "web")) == RUNNING - 1, "the replacement waits", seconds=5)
        assert dra.untainted(cluster, machine) == {*dra.devices(cluster, machine)} - {phone}
    dra.wait_published(cluster, machine, PHONES)
    phones.wait_running(cluster, "web", RUNNING, seconds=phones.RETRIED)
    phones.remove(cluster, "Deployment", "more")
    phones.remove(cluster, "Deployment", "web")


def test_forced(cluster: Cluster, driver: None) -> None:
    """Pods that are deleted by force: no phone is given to two pods, and each is free again."""
    machine = cluster.machine
    phones.create(cluster, dra.deployment("web", PHONES, terminationGracePeriodSeconds=20))
    for _ in range(3):
        phones.wait_running(cluster, "web", PHONES, seconds=4 * PATIENCE)
        cluster.kubectl("delete", "pods", "--selector=app=web", "--force", "--grace-period=0", "--wait=false")
        assert not outside.conflicts(machine), outside.conflicts(machine)
    pods = phones.wait_running(cluster, "web", PHONES, seconds=6 * PATIENCE)
    assert len(dra.owners(cluster, pods)) == PHONES
    phones.remove(cluster, "Deployment", "web")
    until(lambda: not dra.specs(machine), "no claim is prepared", seconds=4 * PATIENCE)


@pytest.mark.parametrize("lost", [f"/var/run/cdi/{dra.DRIVER}-claim_*", "-r /var/run/cdi"], ids=["files", "directory"])
def test_specs_lost(cluster: Cluster, pods: Undisturbed, lost: str) -> None:
    """The driver's CDI specs are lost: they are written again, and a container that restarts has its devices.

    Or their directory, for which the plugin starts anew: its container has the removed one, which no runtime reads.
    """
    cluster.machine.run("sh", "-ec", f"rm {lost}")
    until(lambda: all(dra.prepared(cluster.machine, claim) for claim in pods.claims), "the specs", seconds=2 * PATIENCE)
    pods.check()
    phones.restart_container(cluster, min(pods.owners))
    assert dra.owners(cluster, phones.running(cluster, "web")) == pods.owners
    pods.end()


def test_renamed(cluster: Cluster, pods: Undisturbed) -> None:
    """The driver gets another name under running pods: nobody gets their phones, and they end by the former name.

    Their claims are reported; containers start again meanwhile.
    """
    machine, taken = cluster.machine, {phone for _, phone in pods.owners.values()}
    plugin.install(cluster, dra.values(resource_name=HANDSET) | {"dra": {}})
    event = "claims of a former configuration cannot be released"
    until(lambda: any(event in line and dra.DRIVER in line for line in plugin.log(cluster).splitlines()), event)
    driver = driver_name(HANDSET)
    until(lambda: len(dra.untainted(cluster, machine, driver)) == PHONES - RUNNING, "other phones are published")
    assert not dra.untainted(cluster, machine, driver) & taken
    phones.restart_container(cluster, min(pods.owners))
    cluster.api.delete(f"{phones.collection('Deployment')}/web")
    holds(lambda: all(dra.prepared(machine, claim) for claim in pods.claims), "the claims stay", seconds=5)
    plugin.install(cluster, dra.values())
    dra.wait_unprepared(machine, *pods.claims, seconds=phones.RETRIED)
    dra.wait_published(cluster, machine, PHONES)
