"""Processes of node and control plane that are killed while phones come and go, and a network that is cut briefly."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import load, outside, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import holds, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.kubelet.processes import Daemon

item = Items()

_AWAY: Final = 8.0
"""Seconds for which a program of the control plane is away."""
_NODE: Final = 30.0
"""Seconds after a failure of the node within which the Node object's numbers are right."""
_ALL: Final = 60.0
"""The same after a failure of node and control plane at once."""


def plugin_run(cluster: Cluster) -> tuple[str, str, int]:
    """Return what changes when the plugin is started again: its pod, its container and the restarts."""
    pod = plugin.pod_on(cluster, cluster.machine)
    return pod["metadata"]["uid"], *phones.container_of(pod)


def kill_plugin(cluster: Cluster) -> None:
    """Kill the plugin's process; the kubelet starts the container again."""
    container, _ = phones.container_of(plugin.pod_on(cluster, cluster.machine))
    cluster.machine.runtime.kill(container.removeprefix("containerd://"))


def kill(*daemons: Daemon) -> None:
    """Kill processes."""
    for daemon in daemons:
        daemon.end(signal.SIGKILL)


def wait_restarted(cluster: Cluster, before: tuple[str, str, int]) -> None:
    """Wait until the plugin's container was started again and is ready."""
    until(lambda: plugin_run(cluster) != before and _ready(cluster), "the plugin was started again", seconds=_ALL)


def _ready(cluster: Cluster) -> bool:
    conditions = plugin.pod_on(cluster, cluster.machine)["status"]["conditions"]
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def _survive(
    cluster: Cluster, fail: Callable[[], object], seconds: float, *, away: float = 0, plugin_restarts: bool = False
) -> None:
    """Let something fail for ``away`` seconds while phones come and go.

    The Node object's numbers have to be right ``seconds`` later, and only the plugin's own failures may restart it.
    """
    with load.running(cluster) as load_of_item:
        before = plugin_run(cluster)
        started = time.monotonic()
        fail()
        if plugin_restarts:
            wait_restarted(cluster, before)
        taken = load_of_item.wait_settled(seconds + away, started)
        load_of_item.wait_scaled()
        after = plugin_run(cluster)
        assert (after != before) is plugin_restarts, f"the plugin was {before}, is {after}"
    say(f"#   capacity and allocatable were right {taken:.1f} s after the failure began")


@item("the plugin's process is killed: phones stay, and the Node object is right within 30 s")
def plugin_killed(cluster: Cluster) -> None:
    """The kubelet starts the container again."""
    _survive(cluster, lambda: kill_plugin(cluster), _NODE, plugin_restarts=True)


@item("a plugin that was killed leaves its socket, which the next one removes")
def stale_socket(cluster: Cluster) -> None:
    """The kubelet removes sockets only when it starts itself."""
    if not plugin.pods(cluster):
        plugin.install(cluster)
    before = plugin_run(cluster)
    stale = until(lambda: outside.observe(cluster.machine).sockets, "the plugin's socket")
    kill_plugin(cluster)
    wait_restarted(cluster, before)
    fresh = outside.observe(cluster.machine).sockets
    assert len(fresh) == 1, f"the plugin's sockets are {fresh}"
    assert fresh != stale, f"the socket is {fresh} as before"


@item("the plugin's pod is deleted: phones stay, and the Node object is right within 30 s")
def plugin_deleted(cluster: Cluster) -> None:
    """The DaemonSet creates another pod."""

    def delete() -> None:
        name = plugin.pod_on(cluster, cluster.machine)["metadata"]["name"]
        cluster.api.delete(f"{plugin.PODS}/{name}")

    _survive(cluster, delete, _NODE, plugin_restarts=True)


@item("the kubelet is killed: phones and plugin stay, and the Node object is right within 30 s")
def kubelet_killed(cluster: Cluster) -> None:
    """The host's init starts it again at once."""

    def fail() -> None:
        kill(cluster.machine.kubelet)
        cluster.machine.start_kubelet()

    _survive(cluster, fail, _NODE)


@item("containerd is killed: phones and plugin stay, and the Node object is right within 30 s")
def containerd_killed(cluster: Cluster) -> None:
    """Containers are children of shims, which go on."""

    def fail() -> None:
        kill(cluster.machine.containerd)
        cluster.machine.runtime.start()

    _survive(cluster, fail, _NODE)


@item("kubelet and containerd are killed: phones and plugin stay, and the Node object is right within 30 s")
def kubelet_and_containerd_killed(cluster: Cluster) -> None:
    """Both are away for a time, in which nothing on the node changes."""

    def fail() -> None:
        kill(cluster.machine.kubelet, cluster.machine.containerd)
        time.sleep(_AWAY)
        cluster.machine.runtime.start()
        cluster.machine.start_kubelet()

    _survive(cluster, fail, _NODE, away=_AWAY)


@item("plugin and kubelet are killed: phones stay, and the Node object is right within 30 s")
def plugin_and_kubelet_killed(cluster: Cluster) -> None:
    """The kubelet comes back before the plugin, which it starts."""

    def fail() -> None:
        kill(cluster.machine.kubelet)
        kill_plugin(cluster)
        cluster.machine.start_kubelet()

    _survive(cluster, fail, _NODE, plugin_restarts=True)


@item("each program of the control plane is killed for 8 s: phones and plugin stay")
def control_plane_killed(cluster: Cluster) -> None:
    """One after the other; phones come and go again after each."""
    with load.running(cluster) as load_of_item:
        before = plugin_run(cluster)
        for index, daemon in enumerate(cluster.control_plane.daemons):
            started = time.monotonic()
            _fail_control_plane(cluster, index)
            taken = load_of_item.wait_settled(_NODE + _AWAY, started)
            load_of_item.wait_scaled()
            say(f"#   {daemon.name}: the Node object was read and right {taken:.1f} s after the failure began")
        assert plugin_run(cluster) == before


def _fail_control_plane(cluster: Cluster, *indexes: int) -> None:
    kill(*(cluster.control_plane.daemons[index] for index in indexes))
    time.sleep(_AWAY)
    cluster.control_plane.start()


@item("everything is killed at once: phones stay, and the Node object is right within 60 s")
def everything_killed(cluster: Cluster) -> None:
    """Control plane, kubelet, containerd and plugin; only the phones' containers and their shims go on."""

    def fail() -> None:
        kill_plugin(cluster)
        kill(cluster.machine.kubelet, cluster.machine.containerd)
        _fail_control_plane(cluster, *range(len(cluster.control_plane.daemons)))
        cluster.machine.runtime.start()
        cluster.machine.start_kubelet()

    _survive(cluster, fail, _ALL, away=_AWAY, plugin_restarts=True)


@item("a node without network for 15 s: phones and plugin stay, and the Node object stays right")
def short_partition(cluster: Cluster) -> None:
    """The node stays Ready: its last heartbeat is younger than the grace period."""

    def fail() -> None:
        cluster.machine.disconnect()
        holds(lambda: cluster.node_ready(cluster.machine), "the node is Ready", seconds=15)
        assert "devices allocatable" in readyz(cluster)
        cluster.machine.connect()

    _survive(cluster, fail, 0)


def readyz(cluster: Cluster) -> str:
    """Return the plugin's readiness, asked on its node, so that the network between node and control plane may fail."""
    address = plugin.pod_on(cluster, cluster.machine)["status"]["podIP"]
    return cluster.machine.run("curl", "--silent", f"http://{address}:9478/readyz")


@item("afterwards nothing of the plugin is left")
def removed(cluster: Cluster) -> None:
    """The next group installs what it needs."""
    load.clean_up(cluster)
