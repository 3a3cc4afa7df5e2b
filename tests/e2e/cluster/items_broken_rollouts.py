"""Items with three nodes: a broken configuration stops at the first node, and the way back.

DaemonSet and Helm count with ``maxUnavailable: 10%``, which is one of three nodes, as it is one of up to ten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.cluster import documented, leftovers, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_install import ROLLOUT, refused, rolled_out, write
from tests.e2e.cluster.scenes import PHONES, undisturbed, web
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from tests.e2e.cluster.cluster import Cluster

item = Items()

_OVERLAPPING = {"0-5": 0, "3-9": 1}
"""NUMA nodes that the chart's schema accepts and the plugin refuses."""
_REFUSAL = "ranges must not overlap"


def _pods(cluster: Cluster) -> dict[str, str]:
    """Return the UID of the plugin's pod on each machine."""
    return {machine.name: plugin.pod_on(cluster, machine)["metadata"]["uid"] for machine in cluster.machines}


@item("A configuration that the plugin refuses stops at the first node, and the log names the key; rollback heals it")
def configuration(cluster: Cluster) -> None:
    with web(cluster, 6) as pods, undisturbed(cluster, pods):
        before = _pods(cluster)
        values = write(cluster, plugin.values(numa=_OVERLAPPING))
        documented.shell(cluster, documented.command("helm upgrade").replace("values.yaml", values))
        name = _stopped(cluster, before)
        log = documented.shell(cluster, documented.command("kubectl -n kube-system logs POD"), POD=name)
        assert "numa" in log, log
        assert _REFUSAL in log, log
        documented.shell(cluster, documented.command("helm rollback"))
        rolled_out(cluster)
        after = _pods(cluster)
        same = [machine for machine, uid in before.items() if after[machine] == uid]
        assert len(same) == len(before) - 1, f"pods replaced: {before}, then {after}"
        for machine in cluster.machines:
            plugin.wait_allocatable(cluster, machine, PHONES)
    plugin.uninstall(cluster)
    leftovers.require_none(cluster)


def _stopped(cluster: Cluster, before: dict[str, str]) -> str:
    """Check that the rollout has stopped at one node, and return the name of the pod that does not start."""

    def broken() -> list[dict[str, Any]]:
        return [pod for pod in plugin.pods(cluster) if "CrashLoopBackOff" in phones.reason(pod)]

    (pod,) = until(broken, "a pod that does not start")
    for machine in cluster.machines:
        if machine.name != pod["spec"]["nodeName"]:
            assert _pods(cluster)[machine.name] == before[machine.name], f"the rollout went on: {before}"
            assert plugin.capacity(cluster, machine)[1] == PHONES, machine.name
    name = str(pod["metadata"]["name"])
    listed = documented.shell(cluster, documented.command("kubectl -n kube-system get pods")).splitlines()
    assert [name] == [line.split()[0] for line in listed[1:] if " 1/1 " not in line], listed
    status = refused(lambda: documented.shell(cluster, documented.command(ROLLOUT), "--timeout=2s"))
    assert "1 out of 3 new pods have been updated" in status, status
    return name
