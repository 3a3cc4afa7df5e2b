"""Items: what the driver keeps: slices that others change, devices that vanish, files that are lost, a reboot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.e2e.cluster import dra, phones
from tests.e2e.cluster.claim_scenes import RUNNING, Undisturbed
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_failures import kill_plugin, plugin_run, wait_restarted
from tests.e2e.cluster.scenes import PHONES
from tests.e2e.cluster.slice_history import SliceHistory
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import PATIENCE, holds, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()


@item("Slices that others delete or change are back as they were within 1 s")
def foreign_changes(cluster: Cluster) -> None:
    dra.ensure(cluster)
    expected = dra.devices(cluster, cluster.machine)
    (found,) = dra.slices(cluster, cluster.machine)
    path = f"{dra.SLICES}/{found['metadata']['name']}"
    with SliceHistory(cluster, cluster.machine) as history:
        cluster.api.delete(path)
        (away,) = history.wait_back(PATIENCE)
        say(f"#   back after {away * 1000:.0f} ms")
        assert away < 1, f"{history}"
        cluster.api.patch(path, {"spec": {"devices": [{"name": "forged"}]}})
        until(lambda: dra.devices(cluster, cluster.machine) == expected, "the devices are as before", seconds=5)
    assert len(history.events) == 4, f"{history}"


@item("A device of a running pod vanishes: it is tainted, new pods wait, and the pod runs on")
def unhealthy(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    machine = cluster.machine
    name, (_, phone) = min(pods.owners.items())
    device = f"/dev/aosp_binder{int(phone.removeprefix('aosp_binder')) + 1}"
    path = f"{phones.collection('Pod')}/{name}"
    machine.run("rm", device)
    try:
        until(lambda: dra.devices(cluster, machine)[phone].get("taints"), "the device has a taint")
        (taint,) = dra.devices(cluster, machine)[phone]["taints"]
        say(f"#   {taint}")
        assert (taint["key"], taint["effect"]) == (f"{dra.DRIVER}/unhealthy", "NoSchedule"), taint
        phones.create(cluster, dra.deployment("more", PHONES - RUNNING))
        dra.wait_running(cluster, "more", PHONES - RUNNING)
        cluster.api.delete(path)
        until(lambda: cluster.api.find(path) is None, f"{name} is gone", seconds=2 * PATIENCE)
        # Its replacement would fit on the device that it had, if that had no taint.
        holds(lambda: len(phones.running(cluster, "web")) == RUNNING - 1, "the replacement waits", seconds=5)
        assert dra.untainted(cluster, machine) == {*dra.devices(cluster, machine)} - {phone}
    finally:
        _restore(cluster)
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


@item("The pod's status says whether its device is healthy (gate ResourceHealthStatus)")
def pod_status(cluster: Cluster) -> None:
    """1.34 shows it only if the claim is called as the container calls it, so never for claims of a template."""
    dra.ensure(cluster)
    dra.create(cluster, dra.claim("phone", dra.request()))
    show_health(cluster, dra.pod("shown", claim="phone"))
    cluster.api.delete(f"{dra.CLAIMS}/phone")


def show_health(cluster: Cluster, manifest: dict[str, Any]) -> None:
    """Run a pod with a claim, let its device vanish and come back, and wait for what the pod's status says of it."""
    phones.create(cluster, manifest)
    name = manifest["metadata"]["name"]
    (pod,) = dra.wait_running(cluster, name, 1)
    path = f"{phones.collection('Pod')}/{name}"
    ((_, phone),) = dra.owners(cluster, [pod]).values()
    until(lambda: _health(cluster, path) == {"Healthy"}, "the pod's status")
    try:
        cluster.machine.run("rm", f"/dev/{phone}")
        until(lambda: _health(cluster, path) == {"Unhealthy"}, "the pod's status")
    finally:
        _restore(cluster)
    until(lambda: _health(cluster, path) == {"Healthy"}, "the pod's status")
    phones.remove(cluster, "Pod", name)


def _restore(cluster: Cluster) -> None:
    cluster.machine.nodes("create", "--stand-ins", "--count", str(3 * PHONES))


@item("Pods that are deleted by force: no phone is given to two pods, and each is free again")
def forced(cluster: Cluster) -> None:
    dra.ensure(cluster)
    machine = cluster.machine
    phones.create(cluster, dra.deployment("web", PHONES, terminationGracePeriodSeconds=20))
    for _ in range(3):
        dra.wait_running(cluster, "web", PHONES, seconds=4 * PATIENCE)
        cluster.kubectl("delete", "pods", "--selector=app=web", "--force", "--grace-period=0", "--wait=false")
        until(lambda: not _twice(cluster), "no device is prepared for two claims", seconds=1)
    pods = dra.wait_running(cluster, "web", PHONES, seconds=6 * PATIENCE)
    assert len(dra.owners(cluster, pods)) == PHONES
    phones.remove(cluster, "Deployment", "web")
    until(lambda: not dra.specs(machine), "no claim is prepared", seconds=4 * PATIENCE)


def _twice(cluster: Cluster) -> list[str]:
    """Return the devices that are in two CDI specs."""
    found: list[str] = []
    for text in dra.specs(cluster.machine).values():
        nodes = {
            node["path"]
            for device in json.loads(text)["devices"]
            for node in device["containerEdits"].get("deviceNodes", [])
        }
        found += sorted(nodes)
    return [name for name in found if "aosp_binder" in name and found.count(name) > 1]


def _lose(cluster: Cluster, script: str, *, restart: bool) -> None:
    pods = Undisturbed(cluster)
    before = plugin_run(cluster)
    cluster.machine.run("sh", "-ec", script)
    if restart:
        kill_plugin(cluster)
        wait_restarted(cluster, before)
    pods.check()
    # A container that is started again reads its CDI spec again.
    name = min(pods.owners)
    phones.end_container(cluster, name)
    path = f"{phones.collection('Pod')}/{name}"

    def restarted() -> bool:
        (status,) = cluster.api.get(path)["status"]["containerStatuses"]
        return bool(status["restartCount"] == 1 and "running" in status["state"])

    until(restarted, f"the container of {name} has restarted")
    assert dra.owners(cluster, phones.running(cluster, "web")) == pods.owners
    pods.end()


@item("The driver's CDI specs are lost: they are written again, and a container that restarts has its devices")
def specs_lost(cluster: Cluster) -> None:
    _lose(cluster, f"rm /var/run/cdi/{dra.DRIVER}-claim_*", restart=False)


@item("The driver's own directory is lost while it is away: the CDI specs have all that it needs")
def directory_lost(cluster: Cluster) -> None:
    _lose(cluster, f"rm -r /{dra.KUBELET}/plugins/{dra.DRIVER}", restart=True)


@item("The checkpoint of an earlier version that is damaged is moved aside")
def checkpoint_damaged(cluster: Cluster) -> None:
    _lose(cluster, f"echo x > /{dra.KUBELET}/plugins/{dra.DRIVER}/checkpoint.json", restart=True)


@item("The node reboots with claims: pods run again with whole phones, and no claim is left")
def reboot(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    machine = cluster.machine
    machine.shut_down()
    machine.boot(cluster.parts.kubernetes, lambda: machine.nodes("create", "--stand-ins", "--count", str(3 * PHONES)))
    cluster.wait_node(machine)
    assert not list((machine.root / "run/cdi").glob("*")) or dra.specs(machine)
    dra.wait_published(cluster, machine, PHONES, seconds=4 * PATIENCE)
    now = dra.wait_running(cluster, "web", RUNNING, seconds=6 * PATIENCE)
    until(lambda: len(dra.owners(cluster, phones.running(cluster, "web"))) == RUNNING, "each has a phone", seconds=90)
    same = {pod["metadata"]["name"] for pod in now} == {*pods.owners}
    say(f"#   the pods are {'the same' if same else 'others'} as before the reboot")
    phones.remove(cluster, "Deployment", "web")
    until(lambda: not dra.specs(machine), "no claim is prepared", seconds=2 * PATIENCE)


@item("afterwards nothing of the driver is left")
def removed(cluster: Cluster) -> None:
    """The next group installs what it needs."""
    dra.remove(cluster)
