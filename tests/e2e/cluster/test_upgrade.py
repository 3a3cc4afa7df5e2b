"""Kubernetes is upgraded under running phones, first the control plane and then the kubelet."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.cluster import outside, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import PHONES, RUNNING, containers, free_phone, undisturbed
from tests.e2e.common.processes import run
from tests.e2e.common.waiting import until

pytestmark = pytest.mark.usefixtures("two_phones")

_CONNECTED: Final = re.compile(rf'"Device plugin connected" resourceName="{re.escape(PHONE)}"')


def _version(programs: Path) -> str:
    """Return the version of the programs in a directory, such as v1.34.4."""
    return run(str(programs / "kubelet"), "--version").split()[-1]


def test_control_plane(cluster: Cluster, newest: Path) -> None:
    """The control plane is upgraded to the newest version: phones and plugin run on, and phones start."""
    pods, own = phones.wait_running(cluster, "web", RUNNING), containers(plugin.pods(cluster))
    with undisturbed(cluster, pods):
        cluster.control_plane.replace(newest)
        version = cluster.api.get("/version")["gitVersion"]
        assert version == _version(newest), version
        cluster.wait_node(cluster.machine)
        plugin.wait_allocatable(cluster, cluster.machine, PHONES)
        free_phone(cluster)
    assert containers(plugin.pods(cluster)) == own, "the plugin has restarted"


def test_kubelet(cluster: Cluster, newest: Path) -> None:
    """The kubelet is upgraded to the newest version, and back: phones keep containers and devices."""
    for machine in cluster.machines:
        _replace_kubelet(cluster, machine, newest)
    for programs in (cluster.parts.kubernetes, newest):
        _replace_kubelet(cluster, cluster.machine, programs)


def _replace_kubelet(cluster: Cluster, machine: Machine, programs: Path) -> None:
    """Restart a kubelet with other programs on the same files, and check that phones and plugin run on."""
    pods, own = phones.wait_running(cluster, "web", RUNNING), containers(plugin.pods(cluster))
    with undisturbed(cluster, pods):
        registered = _registrations(machine)
        machine.replace_kubelet(programs)
        until(lambda: _registrations(machine) > registered, "the plugin has registered again", seconds=60)
        until(lambda: len(outside.healthy(machine)) == PHONES, "the kubelet has the devices")
        cluster.wait_node(machine)
        plugin.wait_allocatable(cluster, machine, PHONES)
        assert containers(plugin.pods(cluster)) == own, "the plugin has restarted"
    free_phone(cluster)


def _registrations(machine: Machine) -> int:
    """Return how often plugins have connected to a machine's kubelet, according to its log."""
    return len(_CONNECTED.findall(machine.kubelet.log.read_text(errors="replace")))
