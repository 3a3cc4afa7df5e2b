"""A node that is away for so long that its phones are evicted: without network, or because it never comes back.

The phones may run on the first machine only, so that their replacements wait for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import held, load, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_failures import plugin_run, readyz
from tests.e2e.cluster.scenes import here
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.cluster import Cluster

item = Items()

_HASTY: Final = [
    {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 5,
    }
]
"""The tolerations of phones that are to be evicted soon."""


@item("A node without network for longer than the grace period: its phones run on, and are replaced if they ask for it")
def cut_off(cluster: Cluster) -> None:
    """Without a toleration of their own, phones would be deleted 300 s after the node is not reachable."""
    load.prepare(cluster)
    machine = cluster.machine
    phones.create(cluster, phones.deployment("patient", 2, **here(cluster)))
    phones.create(cluster, phones.deployment("hasty", 2, tolerations=_HASTY, **here(cluster)))
    try:
        patient = phones.wait_running(cluster, "patient", 2)
        hasty = phones.wait_running(cluster, "hasty", 2)
        before, plugin_before = held.devices_by_pod(machine), plugin_run(cluster)
        started = time.monotonic()
        machine.disconnect()
        cluster.wait_node(machine, ready=False, seconds=3 * PATIENCE)
        say(f"#   not Ready after {time.monotonic() - started:.0f} s")
        names = [pod["metadata"]["name"] for pod in hasty]
        until(lambda: not _alive(cluster, names), "phones that tolerate 5 s are deleted", seconds=PATIENCE)
        say(f"#   phones with tolerationSeconds: 5 are Terminating after {time.monotonic() - started:.0f} s")
        replaced = until(lambda: _pending(cluster, "hasty", 2), "their replacements are Pending")
        say(f"#   {phones.reason(replaced[0])}")
        assert held.devices_by_pod(machine) == before, "a container without network lost its device"
        assert "devices allocatable" in readyz(cluster)
        machine.connect()
        connected = time.monotonic()
        cluster.wait_node(machine)
        say(f"#   Ready {time.monotonic() - connected:.0f} s after the network was back")
        now = phones.wait_running(cluster, "hasty", 2, seconds=3 * PATIENCE)
        assert not {pod["metadata"]["name"] for pod in now} & set(names)
        say(f"#   replacements run {time.monotonic() - connected:.0f} s after the network was back")
        plugin.wait_allocatable(cluster, machine, load.PHONES)
        after = phones.wait_running(cluster, "patient", 2)
        assert [phones.container_of(pod) for pod in after] == [phones.container_of(pod) for pod in patient]
        assert plugin_run(cluster) == plugin_before
        assert not held.conflicts(machine)
    finally:
        machine.connect()
        phones.remove(cluster, "Deployment", "hasty")
        phones.remove(cluster, "Deployment", "patient")


def _alive(cluster: Cluster, names: Sequence[str]) -> list[str]:
    """Return the names of the pods that are not being deleted."""
    return [name for name in names if any(pod["metadata"]["name"] == name for pod in phones.of(cluster, "hasty"))]


def _pending(cluster: Cluster, app: str, count: int) -> list[dict[str, Any]]:
    found = [pod for pod in phones.of(cluster, app) if pod["status"].get("phase") == "Pending"]
    return found if len(found) == count else []


@item("A machine that never comes back: what replaces its phones, and when; a machine with its name takes them up")
def never_back(cluster: Cluster) -> None:
    load.prepare(cluster)
    machine = cluster.machine
    options = {"tolerations": _HASTY} | here(cluster)
    phones.create(cluster, phones.deployment("web", 2, **options))
    phones.create(cluster, phones.stateful_set("db", 2, **options))
    phones.create(cluster, phones.pod("bare", **options))
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
    machine.boot(cluster.parts.kubernetes, lambda: machine.nodes("create", "--stand-ins", "--count", "36"))
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
