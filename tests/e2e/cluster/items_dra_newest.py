"""Items: the newest Kubernetes, without a feature gate; the items of other modules that depend on its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.cluster import dra, items_dra, items_dra_claims, items_dra_state
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.items import Item, Items
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

item = Items()


@item("Control plane and kubelets are the newest ones")
def newest(cluster: Cluster) -> None:
    upgrade(cluster)


def upgrade(cluster: Cluster) -> None:
    """Use the newest Kubernetes, if a group before has not."""
    programs = cluster.parts.newest
    assert programs is not None, "the newest Kubernetes is missing"
    plane = cluster.control_plane
    if plane.programs != programs:
        plane.stop()
        plane.use(programs)
        plane.start()
    for machine in cluster.machines:
        if not _is_new(cluster, machine):
            machine.kubelet.end()
            machine.use(programs)
            machine.start_kubelet()
    until(lambda: all(_is_new(cluster, machine) for machine in cluster.machines), "the kubelets are the newest ones")
    for machine in cluster.machines:
        cluster.wait_node(machine)


def _is_new(cluster: Cluster, machine: Machine) -> bool:
    info = cluster.api.get(f"{CORE}/nodes/{machine.name}")["status"]["nodeInfo"]
    return f"v1.{cluster.control_plane.minor}." in info["kubeletVersion"]


@item("The pod's status says whether the device of a claim of a template is healthy")
def template_status(cluster: Cluster) -> None:
    dra.ensure(cluster)
    items_dra_state.show_health(cluster, dra.pod("shown"))


def _items() -> list[Item]:
    chosen = {
        items_dra: ("installs", "template", "kubelet_restart"),
        items_dra_claims: ("shared", "mapped", "parameters"),
        items_dra_state: ("unhealthy", "removed"),
    }
    return [found for module, names in chosen.items() for found in module.item.all if found.name in names]


item.all += _items()
