"""Items: each fault once, and several at once; the invariants are checked afterwards."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.fault_world import World
from tests.e2e.cluster.faults import FAULTS, step
from tests.e2e.cluster.items import Item
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.kubelet.processes import Daemon

_TOGETHER = ("control plane is killed", "kubelet is killed", "plugin is killed", "devices vanish")


def _check(*names: str) -> Callable[[Cluster], None]:
    """Return the check that phones run on through faults, and that everything is right afterwards."""

    def check(cluster: Cluster) -> None:
        with World(cluster) as world:
            step(world, [FAULTS[name] for name in names])

    return check


def _removed(cluster: Cluster) -> None:
    """Leave nothing to the next group."""
    World.remove(cluster)


items = [
    *(Item(f"{name}: other phones run on, and all invariants hold", name, _check(name)) for name in FAULTS),
    Item(f"{', '.join(_TOGETHER)} at once: all invariants hold", "together", _check(*_TOGETHER)),
    Item("afterwards nothing of the plugin is left", "removed", _removed),
]


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

    def ready() -> bool:
        conditions = plugin.pod_on(cluster, cluster.machine)["status"]["conditions"]
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

    until(lambda: plugin_run(cluster) != before and ready(), "the plugin was started again", seconds=2 * PATIENCE)
