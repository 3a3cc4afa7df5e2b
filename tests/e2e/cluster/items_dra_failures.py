"""Items: driver, kubelet and API server fail while pods with claims run, begin and end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import dra, phones, plugin
from tests.e2e.cluster.claim_scenes import Undisturbed, new_pod
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_failures import kill, kill_plugin, plugin_run, readyz, wait_restarted
from tests.e2e.cluster.ownership import phone_of
from tests.e2e.cluster.scenes import PHONES
from tests.e2e.cluster.slice_history import SliceHistory
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import PATIENCE, holds, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()

GONE: Final = 30.0
"""Seconds after which the kubelet deletes the slices of a driver that is away."""


@item("The driver is killed: pods with claims run on, the slices stay, one socket is left, and new pods run")
def driver_killed(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    before, names = plugin_run(cluster), dra.sockets(cluster.machine)
    with SliceHistory(cluster, cluster.machine) as history:
        kill_plugin(cluster)
        wait_restarted(cluster, before)
        say(f"#   a new pod runs {new_pod(cluster, 'after'):.1f} s after it was made")
    assert not history.events, f"{history}"
    after = dra.sockets(cluster.machine)
    assert len(after) == len(names), f"sockets: {after}, before: {names}"
    assert not {*after} & {*names}, f"a socket has the old name: {after}"
    pods.check()
    pods.end()


@item("A pod that is created while the driver is being replaced is prepared by the next one")
def driver_deleted(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    before = plugin_run(cluster)
    cluster.api.delete(f"{plugin.PODS}/{plugin.pod_on(cluster, cluster.machine)['metadata']['name']}")
    phones.create(cluster, dra.pod("meanwhile"))
    wait_restarted(cluster, before)
    started = time.monotonic()
    # A Prepare that found no driver is tried again after about a minute.
    dra.wait_running(cluster, "meanwhile", 1, seconds=3 * PATIENCE)
    say(f"#   the pod runs {time.monotonic() - started:.1f} s after the driver was ready")
    phones.remove(cluster, "Pod", "meanwhile")
    pods.check()
    pods.end()


@item("A rolling update: a pod that is created when the rollout says that it is complete runs without a failed Prepare")
def rolling_update(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    cluster.kubectl("-n", plugin.NAMESPACE, "rollout", "restart", f"daemonset/{plugin.NAME}")
    cluster.kubectl("-n", plugin.NAMESPACE, "rollout", "status", f"daemonset/{plugin.NAME}", "--timeout=120s")
    phones.create(cluster, dra.pod("updated"))
    (pod,) = dra.wait_running(cluster, "updated", 1)
    errors = dra.prepare_errors(cluster, pod)
    assert not errors, errors
    phones.remove(cluster, "Pod", "updated")
    pods.check()
    pods.end()


@item("The driver is away for longer than 30 s: the kubelet deletes its slices; back, it publishes and unprepares")
def driver_away(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    machine = cluster.machine
    name = plugin.pod_on(cluster, machine)["metadata"]["name"]
    with SliceHistory(cluster, machine) as history:
        cluster.api.patch(plugin.DAEMON_SET, {"spec": {"template": {"spec": {"nodeSelector": {"away": "true"}}}}})
        until(lambda: cluster.api.find(f"{plugin.PODS}/{name}") is None, "the driver is away", seconds=2 * PATIENCE)
        started = time.monotonic()
        until(lambda: not dra.slices(cluster, machine), "the slices are gone", seconds=3 * GONE)
        say(f"#   the slices are gone after {time.monotonic() - started:.0f} s")
        # Without the driver a pod with a claim cannot end.
        first = min(pods.owners)
        cluster.api.delete(f"{phones.collection('Pod')}/{first}")
        holds(lambda: cluster.api.find(f"{phones.collection('Pod')}/{first}"), f"{first} is Terminating", seconds=5)
        cluster.api.patch(plugin.DAEMON_SET, {"spec": {"template": {"spec": {"nodeSelector": {"away": None}}}}})
        dra.wait_published(cluster, machine, PHONES, seconds=4 * PATIENCE)
    say(f"#   {history}")
    until(lambda: cluster.api.find(f"{phones.collection('Pod')}/{first}") is None, f"{first} is gone", seconds=90)
    phones.remove(cluster, "Deployment", "web")
    dra.wait_unprepared(machine, *pods.claims)
    dra.ensure(cluster)
    new_pod(cluster, "again")


@item("Kubelet and driver are killed together: slices come back, pods run on")
def both_killed(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    before = plugin_run(cluster)
    kill(cluster.machine.kubelet)
    kill_plugin(cluster)
    cluster.machine.start_kubelet()
    wait_restarted(cluster, before)
    dra.wait_published(cluster, cluster.machine, PHONES)
    new_pod(cluster, "after")
    pods.check()
    pods.end()


@item("A pod that is deleted while the kubelet is down: its claim is unprepared when the kubelet is back")
def deleted_without_kubelet(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    kill(cluster.machine.kubelet)
    cluster.api.delete(f"{phones.collection('Deployment')}/web", propagationPolicy="Background")
    until(lambda: not phones.of(cluster, "web"), "the pods are being deleted")
    assert all(dra.prepared(cluster.machine, claim) for claim in pods.claims)
    cluster.machine.start_kubelet()
    dra.wait_unprepared(cluster.machine, *pods.claims)
    until(lambda: not cluster.api.list(dra.CLAIMS), "the claims are gone", seconds=2 * PATIENCE)


@item("A pod that is created while the kubelet is down runs when it is back")
def created_without_kubelet(cluster: Cluster) -> None:
    dra.ensure(cluster)
    kill(cluster.machine.kubelet)
    phones.create(cluster, dra.pod("early"))
    path = f"{phones.collection('Pod')}/early"
    until(lambda: cluster.api.get(path)["spec"].get("nodeName"), "it is scheduled")
    until(lambda: "waiting for kubelet" in readyz(cluster), "the driver is not ready")
    cluster.machine.start_kubelet()
    (pod,) = dra.wait_running(cluster, "early", 1, seconds=4 * PATIENCE)
    assert phone_of(phones.view(cluster, pod))
    phones.remove(cluster, "Pod", "early")


@item("The API server is killed for 8 s: pods run on, nothing is published again, and new pods run afterwards")
def apiserver_killed(cluster: Cluster) -> None:
    pods = Undisturbed(cluster)
    before, plane = plugin_run(cluster), cluster.control_plane
    versions = [found["metadata"]["resourceVersion"] for found in dra.slices(cluster, cluster.machine)]
    kill(plane.apiserver)
    time.sleep(8)
    plane.start()
    cluster.wait_node(cluster.machine)
    say(f"#   a new pod runs {new_pod(cluster, 'after', seconds=4 * PATIENCE):.1f} s after it was made")
    assert plugin_run(cluster) == before, "the driver was started again"
    after = [found["metadata"]["resourceVersion"] for found in dra.slices(cluster, cluster.machine)]
    assert after == versions, "the slices were written again"
    pods.check()
    pods.end()


@item("afterwards nothing of the driver is left")
def removed(cluster: Cluster) -> None:
    """The next group installs what it needs."""
    dra.remove(cluster)
