"""A Node object that is deleted, and a machine that never comes back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import held, load, phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.items import Items
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()


@item("A Node object that is deleted while phones run, and a kubelet that is restarted at once: phones and plugin stay")
def node_deleted(cluster: Cluster) -> None:
    load.prepare(cluster)
    machine = cluster.machine
    phones.create(cluster, phones.deployment("kept", 4))
    before = phones.wait_running(cluster, "kept", 4)
    devices = held.devices_by_pod(machine)
    uid = cluster.api.get(f"{CORE}/nodes/{machine.name}")["metadata"]["uid"]
    cluster.kubectl("delete", "node", machine.name)
    machine.kubelet.end()
    started = time.monotonic()
    machine.start_kubelet()
    cluster.wait_node(machine)
    assert cluster.api.get(f"{CORE}/nodes/{machine.name}")["metadata"]["uid"] != uid
    say(f"#   a new Node object is Ready after {time.monotonic() - started:.1f} s")
    plugin.wait_allocatable(cluster, machine, load.PHONES)
    say(f"#   its devices are allocatable after {time.monotonic() - started:.1f} s")
    time.sleep(_QUARANTINE)
    after = phones.wait_running(cluster, "kept", 4)
    assert [phones.container_of(pod) for pod in after] == [phones.container_of(pod) for pod in before]
    assert held.devices_by_pod(machine) == devices
    phones.remove(cluster, "Deployment", "kept")
    load.clean_up(cluster)


_QUARANTINE: Final = 75.0
"""Seconds after which the garbage collector of pods would have deleted the pods of a node that does not exist."""


@item("A machine that never comes back: what replaces its phones, and when; a machine with its name takes them up")
def lost(cluster: Cluster) -> None:
    load.prepare(cluster)
    machine = cluster.machine
    unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    tolerations = [unreachable | {"tolerationSeconds": 5}]
    phones.create(cluster, phones.deployment("web", 2, tolerations=tolerations))
    phones.create(cluster, phones.stateful_set("db", 2, tolerations=tolerations))
    phones.create(cluster, phones.pod("bare", tolerations=tolerations))
    before = {pod["metadata"]["uid"] for app in ("web", "db", "bare") for pod in _wait(cluster, app)}
    started = time.monotonic()
    machine.shut_down()
    cluster.wait_node(machine, ready=False, seconds=3 * PATIENCE)
    say(f"#   not Ready after {time.monotonic() - started:.0f} s")
    until(lambda: len(phones.of(cluster, "web")) == 2 and not before & _uids_of(cluster, "web"), "replaced", seconds=60)
    say(f"#   the Deployment's phones are replaced after {time.monotonic() - started:.0f} s")
    assert not phones.of(cluster, "db"), "the StatefulSet's phones are Terminating"
    assert _uids_of(cluster, "db", deleted=True) <= before, (
        "a StatefulSet's phone was replaced while its old one may run"
    )
    cluster.kubectl("delete", "node", machine.name)
    deleted = time.monotonic()
    until(lambda: len(phones.of(cluster, "db")) == 2, "the StatefulSet's phones are replaced", seconds=4 * PATIENCE)
    say(f"#   the StatefulSet's phones are replaced {time.monotonic() - deleted:.0f} s after the Node was deleted")
    assert cluster.api.find(f"{phones.collection('Pod')}/bare") is None
    machine.boot(cluster.parts.kubernetes, lambda: machine.hack("create", "--stand-ins", "--count", "36"))
    booted = time.monotonic()
    cluster.wait_node(machine)
    for app in ("web", "db"):
        _wait(cluster, app)
    say(f"#   they run {time.monotonic() - booted:.0f} s after a machine with this name has booted")
    plugin.wait_allocatable(cluster, machine, load.PHONES)
    assert not held.conflicts(machine)
    phones.remove(cluster, "Deployment", "web")
    phones.remove(cluster, "StatefulSet", "db")
    load.clean_up(cluster)


def _wait(cluster: Cluster, app: str) -> list[dict[str, Any]]:
    return phones.wait_running(cluster, app, 1 if app == "bare" else 2, seconds=2 * PATIENCE)


def _uids_of(cluster: Cluster, app: str, *, deleted: bool = False) -> set[str]:
    pods = cluster.api.list(phones.collection("Pod"), labelSelector=f"app={app}")
    return {pod["metadata"]["uid"] for pod in pods if deleted or "deletionTimestamp" not in pod["metadata"]}
