"""Items: driver, kubelet and API server fail while pods with claims run, begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.cluster import dra, phones
from tests.e2e.cluster.claim_scenes import Undisturbed
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_failures import kill_plugin, plugin_run, wait_restarted
from tests.e2e.cluster.items_rollout import restart_plugin
from tests.e2e.cluster.watching import SliceHistory

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()


@item("The driver is killed: pods with claims run on, the slices stay, one socket is left, and new pods run")
def driver_killed(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    before, names = plugin_run(cluster), dra.sockets(cluster.machine)
    with SliceHistory(cluster, cluster.machine) as history:
        kill_plugin(cluster)
        wait_restarted(cluster, before)
        phones.create(cluster, dra.pod("after"))
        dra.wait_running(cluster, "after", 1)
        phones.remove(cluster, "Pod", "after")
    assert not history.events, f"{history}"
    after = dra.sockets(cluster.machine)
    assert len(after) == len(names), f"sockets: {after}, before: {names}"
    assert not {*after} & {*names}, f"a socket has the old name: {after}"
    pods.check()
    pods.end()


@item("A rolling update: a pod that is created when the rollout says that it is complete runs without a failed Prepare")
def rolling_update(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    restart_plugin(cluster)
    phones.create(cluster, dra.pod("updated"))
    (pod,) = dra.wait_running(cluster, "updated", 1)
    errors = dra.prepare_errors(cluster, pod)
    assert not errors, errors
    phones.remove(cluster, "Pod", "updated")
    pods.check()
    pods.end()
