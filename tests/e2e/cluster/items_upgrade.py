"""Items: Kubernetes is upgraded under running phones, first the control plane and then the kubelet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_rollout import RUNNING, free_phone, start
from tests.e2e.cluster.ownership import healthy
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import PHONES, containers, undisturbed
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

item = Items()

_CONNECTED: Final = re.compile(rf'"Device plugin connected" resourceName="{re.escape(PHONE)}"')


def newest(cluster: Cluster) -> Path:
    """Return the programs of the newest Kubernetes."""
    assert cluster.parts.newest is not None, "the newest Kubernetes is missing"
    return cluster.parts.newest


def _version(programs: Path) -> str:
    """Return the version of the programs in a directory, such as v1.34.4."""
    return run(str(programs / "kubelet"), "--version").split()[-1]


@item("The control plane is upgraded to the newest version: phones and plugin run on, and phones start")
def control_plane(cluster: Cluster) -> None:
    start(cluster)
    pods, own = phones.wait_running(cluster, "web", RUNNING), containers(plugin.pods(cluster))
    with undisturbed(cluster, pods):
        cluster.control_plane.stop()
        cluster.control_plane.use(newest(cluster))
        cluster.control_plane.start()
        version = cluster.api.get("/version")["gitVersion"]
        assert version == _version(newest(cluster)), version
        cluster.wait_node(cluster.machine)
        plugin.wait_allocatable(cluster, cluster.machine, PHONES)
        free_phone(cluster)
    assert containers(plugin.pods(cluster)) == own, "the plugin has restarted"


@item("The kubelet is upgraded to the newest version: phones keep containers and devices, the plugin registers again")
def kubelet(cluster: Cluster) -> None:
    for machine in cluster.machines:
        _replace_kubelet(cluster, machine, newest(cluster))


@item("The kubelet is replaced by the version before the upgrade: phones keep containers and devices")
def kubelet_back(cluster: Cluster) -> None:
    start(cluster)
    _replace_kubelet(cluster, cluster.machine, cluster.parts.kubernetes)
    _replace_kubelet(cluster, cluster.machine, newest(cluster))
    phones.remove(cluster, "Deployment", "web")
    plugin.uninstall(cluster)


def _replace_kubelet(cluster: Cluster, machine: Machine, programs: Path) -> None:
    """Restart a kubelet with other programs on the same files, and check that phones and plugin run on."""
    pods, own = phones.wait_running(cluster, "web", RUNNING), containers(plugin.pods(cluster))
    with undisturbed(cluster, pods):
        registered = _registrations(machine)
        machine.kubelet.end()
        machine.use(programs)
        machine.start_kubelet()
        until(lambda: _registrations(machine) > registered, "the plugin has registered again", seconds=60)
        until(lambda: len(healthy(machine)) == PHONES, "the kubelet has the devices")
        cluster.wait_node(machine)
        plugin.wait_allocatable(cluster, machine, PHONES)
        assert containers(plugin.pods(cluster)) == own, "the plugin has restarted"
    free_phone(cluster)


def _registrations(machine: Machine) -> int:
    """Return how often plugins have connected to a machine's kubelet, according to its log."""
    return len(_CONNECTED.findall(machine.kubelet.log.read_text(errors="replace")))
