"""Items: rolling updates of the plugin while phones run, with and without maxSurge."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import documented, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.ownership import owners
from tests.e2e.cluster.plugin import VALUES
from tests.e2e.cluster.scenes import PHONES, prepare, undisturbed
from tests.e2e.cluster.watching import NodeHistory
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import holds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.cluster import Cluster

item = Items()

REPORT: Final = 10.0
"""Seconds between two reports of the kubelet to the API server."""
RUNNING: Final = 2
"""Phones that run during a rolling update; others are free."""


@contextlib.contextmanager
def rollout(cluster: Cluster, what: str) -> Iterator[NodeHistory]:
    """Check that a rolling update, which the context starts and waits for, restarts no phone."""
    machine = cluster.machine
    pods = phones.wait_running(cluster, "web", RUNNING)
    old = plugin.pod_on(cluster, machine)["metadata"]["uid"]
    with undisturbed(cluster, pods), NodeHistory(cluster, machine) as history:
        yield history
        assert plugin.pod_on(cluster, machine)["metadata"]["uid"] != old, "the plugin's pod is the old one"
        # The kubelet reports every 10 s: the report after the last change is the last one that can show it.
        holds(lambda: len(phones.running(cluster, "web")) == RUNNING, "the phones run on", seconds=REPORT + 2)
        plugin.wait_allocatable(cluster, machine, PHONES)
        say(f"# {what}: the Node object: {history}")


def values(*, surge: bool = True, tag: str = "") -> dict[str, Any]:
    """Return the chart's values: with maxSurge, the default, or without; with another tag of the image."""
    changed = copy.deepcopy(VALUES)
    if tag:
        changed["image"]["tag"] = tag
    return changed | ({} if surge else documented.example("rollingUpdate: {maxSurge"))


def start(cluster: Cluster, values: dict[str, Any] = VALUES) -> None:
    """Install the plugin with these values, and let the phones run that all items share."""
    plugin.install(cluster, values)
    prepare(cluster)
    if not phones.of(cluster, "web"):
        phones.create(cluster, phones.deployment("web", RUNNING))


def restart_plugin(cluster: Cluster, seconds: float = 120) -> None:
    """Restart the plugin's pods by a rolling update, as people do."""
    target = (f"daemonset/{plugin.NAME}", f"--namespace={plugin.NAMESPACE}")
    cluster.kubectl("rollout", "restart", *target, seconds=seconds)
    cluster.kubectl("rollout", "status", *target, f"--timeout={seconds:.0f}s", seconds=seconds + 10)


def free_phone(cluster: Cluster) -> None:
    """Check that one more phone starts."""
    phones.create(cluster, phones.pod("further"))
    assert len(owners(cluster, phones.wait_running(cluster, "further", 1))) == 1
    phones.remove(cluster, "Pod", "further")


@item("maxSurge: 0: no phone restarts, and the Node object has all devices again; its capacity stays")
def restart(cluster: Cluster) -> None:
    start(cluster, values(surge=False))
    with rollout(cluster, "rollout restart with maxSurge: 0") as history:
        restart_plugin(cluster)
    assert {capacity for capacity, _ in history.amounts} == {PHONES}, f"{history}"
    free_phone(cluster)


@item("By default, the new plugin is ready before the old one ends; no phone restarts, and the Node's capacity stays")
def surge(cluster: Cluster) -> None:
    start(cluster)
    with rollout(cluster, "rollout restart") as history:
        restart_plugin(cluster)
    name = plugin.pod_on(cluster, cluster.machine)["metadata"]["name"]
    log = cluster.api.text("GET", f"{plugin.PODS}/{name}/log")
    assert "another plugin of the resource is running" in log, f"the old plugin had ended: {log[:500]}"
    # A report of the kubelet may meet the milliseconds in which it has no plugin: the new one registers again.
    assert {capacity for capacity, _ in history.amounts} == {PHONES}, f"{history}"
    free_phone(cluster)


@item("afterwards nothing of the plugin is left")
def removed(cluster: Cluster) -> None:
    """The next group installs what it needs."""
    phones.remove(cluster, "Deployment", "web")
    plugin.uninstall(cluster)
