"""Rolling updates of the plugin while phones run, with and without maxSurge, and one that is refused."""

from typing import Final

import pytest

from tests.e2e.cluster import documented, phones, plugin, watching
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import LABEL, PHONES, RUNNING, free_phone, restart_plugin, undisturbed
from tests.e2e.common.waiting import holds

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("two_phones")]

REPORT: Final = 10.0
"""Seconds between two reports of the kubelet to the API server."""


def _update(cluster: Cluster) -> None:
    """Check that a rolling update restarts no phone, and that one more starts afterwards."""
    machine = cluster.machine
    pods = phones.wait_running(cluster, "web", RUNNING)
    old = plugin.pod_on(cluster, machine)["metadata"]["uid"]
    history = watching.History(cluster, f"{CORE}/nodes", f"metadata.name={machine.name}")
    with undisturbed(cluster, pods):
        restart_plugin(cluster)
        assert plugin.pod_on(cluster, machine)["metadata"]["uid"] != old, "the plugin's pod is the old one"
        # The kubelet reports every 10 s: the report after the last change is the last one that can show it.
        holds(lambda: len(phones.running(cluster, "web")) == RUNNING, "the phones run on", seconds=REPORT + 2)
        plugin.wait_allocatable(cluster, machine, PHONES)
    # A report of the kubelet may meet the milliseconds in which it has no plugin: the new one registers again.
    nodes = (history.first[0], *(node for _, node in history.events()))
    capacities = {node["status"]["capacity"].get(PHONE) for node in nodes}
    assert capacities == {str(PHONES)}, capacities
    free_phone(cluster)


def test_restart(cluster: Cluster) -> None:
    """maxSurge: 0: no phone restarts, and the Node object has all devices again; its capacity stays."""
    plugin.install(cluster, plugin.VALUES | documented.example("rollingUpdate: {maxSurge"))
    _update(cluster)


def test_surge(cluster: Cluster) -> None:
    """By default, the new plugin is ready before the old one ends; no phone restarts, and the Node's capacity stays."""
    _update(cluster)
    log = plugin.log(cluster)
    assert "another plugin of the resource is running" in log, f"the old plugin had ended: {log[:500]}"


def test_update_after_update(cluster: Cluster) -> None:
    """An update that begins when the plugin has only just become ready ends, too."""
    for _ in range(2):
        restart_plugin(cluster)


def test_rejected_configuration(cluster: Cluster) -> None:
    """If the plugin rejects the configuration of one kind of nodes, the upgrade fails and replaces no pod of any."""
    old = plugin.pod_on(cluster, cluster.machine)["metadata"]["uid"]
    kinds = [
        {"name": name, "nodeSelector": {LABEL: name}, "config": config}
        for name, config in (("right", {}), ("wrong", {"container_paths": ["/proc/binder"]}))
    ]
    with pytest.raises(AssertionError, match="pre-upgrade hooks failed"):
        plugin.release(cluster, plugin.VALUES | {"nodes": kinds})
    log = documented.shell(documented.command("kubectl -n kube-system logs job/aosp-device-plugin-check"))
    assert "file /etc/aosp-plugin/wrong.yaml: container_paths" in log, log
    assert plugin.pod_on(cluster, cluster.machine)["metadata"]["uid"] == old, "the plugin's pod was replaced"
    assert plugin.capacity(cluster, cluster.machine) == (PHONES, PHONES)
    # Otherwise `helm uninstall` would only delete what the refused revision has, which is the DaemonSets of the kinds.
    plugin.install(cluster)
