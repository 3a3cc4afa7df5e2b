"""Nodes move from the device plugin to DRA and back, one by one, with the same pods: `aosp.io/phone: 1`.

With the newest Kubernetes: 1.34 uses DRA only on nodes that do not list the resource, not even with 0.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.e2e.cluster import dra, outside, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.plugin import SIZE
from tests.e2e.cluster.scenes import LABEL, PHONES
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.deploy.parts import CHART

RELEASE: Final = "phones-dra"
APP: Final = "old"
COUNT: Final = 2 * PHONES - 2
"""Phones that fit on two machines while another one is drained, with room for a pod that is being replaced."""


@pytest.fixture
def both_apis(cluster: Cluster, three_nodes: None, upgraded: None) -> Iterator[None]:
    """Install both releases: the device plugin where the label is true, the DRA driver where it is dra."""
    plugin.install(cluster, plugin.values() | {"nodeSelector": {LABEL: "true"}})
    path = cluster.directory / "dra.json"
    path.write_text(json.dumps(dra.values() | {"nodeSelector": {LABEL: "dra"}}))
    namespace = f"--namespace={plugin.NAMESPACE}"
    cluster.helm("install", RELEASE, str(CHART), namespace, f"--values={path}")
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, PHONES)
    yield
    cluster.helm("uninstall", RELEASE, namespace, "--ignore-not-found", "--wait")
    dra.remove(cluster)
    cluster.kubectl("label", "node", "--all", f"{LABEL}=true", "--overwrite")


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the running pods of the Deployment, each of which has a whole phone that no other has."""
    running = phones.wait_running(cluster, APP, COUNT, seconds=4 * PATIENCE)
    for machine in cluster.machines:
        assert not outside.conflicts(machine), outside.conflicts(machine)
        sizes = {len(devices) for _, devices in outside.holders(machine)}
        assert sizes <= {SIZE}, outside.holders(machine)
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


def test_node_by_node(cluster: Cluster, both_apis: None) -> None:
    """Node by node from the device plugin to DRA and back: the same Deployment runs on, each pod with a whole phone."""
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


def test_under_running_pods(cluster: Cluster, both_apis: None) -> None:
    """A node that changes its API under running pods: their devices are not offered to others until they have ended."""
    machine = cluster.machine
    here = {"nodeSelector": {"kubernetes.io/hostname": machine.name}}
    phones.run(cluster, phones.deployment(APP, 2, **here))
    taken = set().union(*(devices for _, devices in outside.holders(machine)))
    cluster.kubectl("label", "node", machine.name, f"{LABEL}=dra", "--overwrite")
    dra.wait_published(cluster, machine, PHONES - 2, seconds=4 * PATIENCE)
    assert not dra.untainted(cluster, machine) & taken
    dra.create(cluster, dra.template(dra.TEMPLATE, dra.request()))
    phones.create(cluster, dra.deployment("new", PHONES, **here))
    phones.wait_running(cluster, "new", PHONES - 2, seconds=phones.RETRIED)
    assert not outside.conflicts(machine), outside.conflicts(machine)
    phones.remove(cluster, "Deployment", APP)
    phones.wait_running(cluster, "new", PHONES, seconds=4 * PATIENCE)
    assert not outside.conflicts(machine), outside.conflicts(machine)
    phones.remove(cluster, "Deployment", "new")
    move(cluster, machine, "true")
