"""Items: nodes move from the device plugin to DRA and back, one by one, with the same pods: `aosp.io/phone: 1`.

With the newest Kubernetes: 1.34 uses DRA only on nodes that do not list the resource, not even with 0.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import dra, held, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_dra_newest import upgrade
from tests.e2e.cluster.plugin import SIZE
from tests.e2e.cluster.scenes import PHONES
from tests.e2e.deploy.parts import CHART
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

item = Items()

LABEL: Final = "aosp.io/binder"
RELEASE: Final = "phones-dra"
APP: Final = "old"
COUNT: Final = 2 * PHONES - 2
"""Phones of two machines, with room for those of a pod that is being replaced."""


def prepare(cluster: Cluster) -> None:
    """Install both releases: the device plugin where the label is true, the DRA driver where it is dra."""
    if cluster.api.find(f"{dra.CLASSES}/{dra.DRIVER}") and plugin.NAME in _releases(cluster):
        return
    upgrade(cluster)
    dra.remove(cluster)
    values = plugin.values() | {"nodeSelector": {LABEL: "true"}}
    plugin.install(cluster, values)
    path = cluster.directory / "dra.json"
    path.write_text(json.dumps(dra.values() | {"nodeSelector": {LABEL: "dra"}}))
    words = ("install", RELEASE, str(CHART), f"--namespace={plugin.NAMESPACE}", f"--values={path}")
    cluster.helm(*words)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, PHONES)


def _releases(cluster: Cluster) -> list[str]:
    return cluster.helm("list", "--short", f"--namespace={plugin.NAMESPACE}").split()


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the running pods of the Deployment, each of which has a whole phone that no other has."""
    running = dra.wait_running(cluster, APP, COUNT, seconds=4 * PATIENCE)
    for machine in cluster.machines:
        assert not held.conflicts(machine), held.conflicts(machine)
        sizes = {len(devices) for devices in held.devices_by_pod(machine).values()}
        assert sizes <= {SIZE}, held.devices_by_pod(machine)
    return running


def move(cluster: Cluster, machine: Machine, label: str) -> None:
    """Move a node as docs/dra.md says: drain it, change its label, and uncordon it when it offers phones."""
    cluster.kubectl("drain", machine.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
    cluster.kubectl("label", "node", machine.name, f"{LABEL}={label}", "--overwrite")
    if label == "dra":
        until(lambda: plugin.capacity(cluster, machine)[1] == 0, "the device plugin is gone", seconds=2 * PATIENCE)
        dra.wait_published(cluster, machine, PHONES, seconds=2 * PATIENCE)
    else:
        plugin.wait_allocatable(cluster, machine, PHONES, seconds=3 * PATIENCE)
        until(lambda: not dra.slices(cluster, machine), "the slices are gone", seconds=3 * PATIENCE)
    cluster.kubectl("uncordon", machine.name)


@item("Node by node from the device plugin to DRA and back: the same Deployment runs on, each pod with a whole phone")
def node_by_node(cluster: Cluster) -> None:
    prepare(cluster)
    phones.create(cluster, phones.deployment(APP, COUNT))
    pods(cluster)
    for label in ("dra", "true"):
        for machine in cluster.machines:
            move(cluster, machine, label)
            cluster.kubectl("rollout", "restart", f"deployment/{APP}")
            cluster.kubectl("rollout", "status", f"deployment/{APP}", "--timeout=180s")
            here = [pod for pod in pods(cluster) if pod["spec"]["nodeName"] == machine.name]
            by_dra = {"extendedResourceClaimStatus" in pod["status"] for pod in here}
            assert by_dra == {label == "dra"}, f"{machine.name} to {label}: {by_dra}"
    phones.remove(cluster, "Deployment", APP)


@item("A node that changes its API under running pods: their devices are not offered to others until they have ended")
def under_running_pods(cluster: Cluster) -> None:
    prepare(cluster)
    machine = cluster.machine
    here = {"nodeSelector": {"kubernetes.io/hostname": machine.name}}
    phones.create(cluster, phones.deployment(APP, 2, **here))
    dra.wait_running(cluster, APP, 2)
    taken = set().union(*held.devices_by_pod(machine).values())
    cluster.kubectl("label", "node", machine.name, f"{LABEL}=dra", "--overwrite")
    dra.wait_published(cluster, machine, PHONES - 2, seconds=4 * PATIENCE)
    assert not dra.untainted(cluster, machine) & taken
    dra.create(cluster, dra.template(dra.TEMPLATE, dra.request()))
    phones.create(cluster, dra.deployment("new", PHONES, **here))
    dra.wait_running(cluster, "new", PHONES - 2)
    assert not held.conflicts(machine), held.conflicts(machine)
    phones.remove(cluster, "Deployment", APP)
    dra.wait_running(cluster, "new", PHONES, seconds=4 * PATIENCE)
    assert not held.conflicts(machine), held.conflicts(machine)
    phones.remove(cluster, "Deployment", "new")
    move(cluster, machine, "true")


@item("afterwards nothing of both releases is left")
def removed(cluster: Cluster) -> None:
    """The next group installs what it needs."""
    cluster.helm("uninstall", RELEASE, f"--namespace={plugin.NAMESPACE}", "--ignore-not-found", "--wait")
    dra.remove(cluster)
    for machine in cluster.machines:
        cluster.kubectl("label", "node", machine.name, f"{LABEL}=true", "--overwrite")
