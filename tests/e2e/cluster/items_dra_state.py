"""Items: what the driver keeps: slices that others change, devices that vanish, files that are lost, a reboot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aosp_plugin.framework.dra.slices import driver_name
from tests.e2e.cluster import dra, held, phones, plugin
from tests.e2e.cluster.claim_scenes import RUNNING, Undisturbed
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.scenes import PHONES, without
from tests.e2e.kubelet.waiting import PATIENCE, holds, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

HANDSET: Final = "aosp.io/handset"
"""The other name of the resource."""

item = Items()


@item("A device of a running pod vanishes: it is tainted, new pods wait, and the pod runs on")
def unhealthy(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    machine = cluster.machine
    name, (_, phone) = min(pods.owners.items())
    path = f"{phones.collection('Pod')}/{name}"
    with without(cluster, phone):
        until(lambda: dra.devices(cluster, machine)[phone].get("taints"), "the device has a taint")
        (taint,) = dra.devices(cluster, machine)[phone]["taints"]
        assert (taint["key"], taint["effect"]) == (f"{dra.DRIVER}/unhealthy", "NoSchedule"), taint
        phones.create(cluster, dra.deployment("more", PHONES - RUNNING))
        dra.wait_running(cluster, "more", PHONES - RUNNING)
        cluster.api.delete(path)
        until(lambda: cluster.api.find(path) is None, f"{name} is gone", seconds=2 * PATIENCE)
        # Its replacement would fit on the device that it had, if that had no taint.
        holds(lambda: len(phones.running(cluster, "web")) == RUNNING - 1, "the replacement waits", seconds=5)
        assert dra.untainted(cluster, machine) == {*dra.devices(cluster, machine)} - {phone}
    dra.wait_published(cluster, machine, PHONES)
    dra.wait_running(cluster, "web", RUNNING)
    phones.remove(cluster, "Deployment", "more")
    phones.remove(cluster, "Deployment", "web")


def _health(cluster: Cluster, path: str) -> set[str]:
    """Return the health of the devices in a pod's status."""
    (status,) = cluster.api.get(path)["status"]["containerStatuses"]
    return {
        resource["health"]
        for entry in status.get("allocatedResourcesStatus", [])
        if entry["name"].startswith("claim:")
        for resource in entry["resources"]
    }


def show_health(cluster: Cluster, manifest: dict[str, Any]) -> None:
    """Run a pod with a claim, let its device vanish and come back, and wait for what the pod's status says of it."""
    phones.create(cluster, manifest)
    name = manifest["metadata"]["name"]
    (pod,) = dra.wait_running(cluster, name, 1)
    path = f"{phones.collection('Pod')}/{name}"
    ((_, phone),) = dra.owners(cluster, [pod]).values()
    until(lambda: _health(cluster, path) == {"Healthy"}, "the pod's status")
    with without(cluster, phone):
        until(lambda: _health(cluster, path) == {"Unhealthy"}, "the pod's status")
    until(lambda: _health(cluster, path) == {"Healthy"}, "the pod's status")
    phones.remove(cluster, "Pod", name)


@item("Pods that are deleted by force: no phone is given to two pods, and each is free again")
def forced(cluster: Cluster) -> None:
    dra.ensure(cluster)
    machine = cluster.machine
    phones.create(cluster, dra.deployment("web", PHONES, terminationGracePeriodSeconds=20))
    for _ in range(3):
        dra.wait_running(cluster, "web", PHONES, seconds=4 * PATIENCE)
        cluster.kubectl("delete", "pods", "--selector=app=web", "--force", "--grace-period=0", "--wait=false")
        assert not held.conflicts(machine), held.conflicts(machine)
    pods = dra.wait_running(cluster, "web", PHONES, seconds=6 * PATIENCE)
    assert len(dra.owners(cluster, pods)) == PHONES
    phones.remove(cluster, "Deployment", "web")
    until(lambda: not dra.specs(machine), "no claim is prepared", seconds=4 * PATIENCE)


@item("The driver's CDI specs are lost: they are written again, and a container that restarts has its devices")
def specs_lost(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    cluster.machine.run("sh", "-ec", f"rm /var/run/cdi/{dra.DRIVER}-claim_*")
    pods.check()
    _restart_container(cluster, pods)
    assert dra.owners(cluster, phones.running(cluster, "web")) == pods.owners
    pods.end()


@item("/var/run/cdi is removed: the plugin starts anew, writes the specs again, and a container has its devices")
def cdi_directory_removed(cluster: Cluster) -> None:
    """The plugin's container has the removed directory as a mount, which no runtime reads."""
    pods = Undisturbed(cluster)
    cluster.machine.run("rm", "-r", "/var/run/cdi")
    until(lambda: all(dra.prepared(cluster.machine, claim) for claim in pods.claims), "the specs", seconds=2 * PATIENCE)
    pods.check()
    _restart_container(cluster, pods)
    assert dra.owners(cluster, phones.running(cluster, "web")) == pods.owners
    pods.end()


def _restart_container(cluster: Cluster, pods: Undisturbed) -> None:
    """End the container of a pod. The one that is started in its place reads its CDI spec again."""
    name = min(pods.owners)
    phones.end_container(cluster, name)
    path = f"{phones.collection('Pod')}/{name}"

    def restarted() -> bool:
        (status,) = cluster.api.get(path)["status"]["containerStatuses"]
        return bool(status["restartCount"] == 1 and "running" in status["state"])

    until(restarted, f"the container of {name} has restarted")


@item("The driver gets another name under running pods: nobody gets their phones, and they end by the former name")
def renamed(cluster: Cluster) -> None:
    """Their claims are reported; containers start again meanwhile."""
    pods = Undisturbed(cluster)
    machine, taken = cluster.machine, {phone for _, phone in pods.owners.values()}
    plugin.install(cluster, dra.values(resource_name=HANDSET) | {"dra": {}})
    log = (f"--namespace={plugin.NAMESPACE}", "logs", plugin.pod_on(cluster, machine)["metadata"]["name"])
    event = "claims of a former configuration cannot be released"
    until(lambda: any(event in line and dra.DRIVER in line for line in cluster.kubectl(*log).splitlines()), event)
    driver = driver_name(HANDSET)
    until(lambda: len(dra.untainted(cluster, machine, driver)) == PHONES - RUNNING, "other phones are published")
    assert not dra.untainted(cluster, machine, driver) & taken
    _restart_container(cluster, pods)
    cluster.api.delete(f"{phones.collection('Deployment')}/web")
    holds(lambda: all(dra.prepared(machine, claim) for claim in pods.claims), "the claims stay", seconds=5)
    plugin.install(cluster, dra.values())
    dra.wait_unprepared(machine, *pods.claims, seconds=dra.RETRIED)
    dra.wait_published(cluster, machine, PHONES)


@item("afterwards nothing of the driver is left")
def removed(cluster: Cluster) -> None:
    """The next group installs what it needs."""
    dra.remove(cluster)
