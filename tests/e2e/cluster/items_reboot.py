"""A node that reboots with many phones.

The machine loses power: its processes end at once, and what it had in memory is gone. The node is not drained before.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import held, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.scenes import INSUFFICIENT, restore
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.processes import EnteredDaemon
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.cluster.cluster import Cluster

item = Items()

COUNT: Final = 120
_MANY: Final = 240.0
"""Seconds within which 120 phones run; 60 on two free cores."""
_REJECTED: Final = "UnexpectedAdmissionError"


def provide(cluster: Cluster) -> None:
    """Create the binder devices of 120 phones, as a script does that runs when a host boots."""
    cluster.machine.nodes("create", "--stand-ins", "--count", str(COUNT * plugin.SIZE))


def reboot(cluster: Cluster, before_kubelet: Callable[[], object] = lambda: None) -> None:
    """Let the machine lose power and boot at once."""
    cluster.machine.shut_down()
    cluster.machine.boot(cluster.parts.kubernetes, before_kubelet)


def wait_phones(cluster: Cluster) -> None:
    """Wait until all phones run, each with devices of its own."""
    phones.wait_running(cluster, "web", COUNT, seconds=_MANY)
    until(lambda: len(held.holders(cluster.machine)) == COUNT, f"{COUNT} containers have devices", seconds=_MANY)
    sizes = {len(devices) for _, devices in held.holders(cluster.machine)}
    assert sizes == {plugin.SIZE}, sizes
    assert not held.conflicts(cluster.machine), held.conflicts(cluster.machine)


def pods_of(cluster: Cluster, phase: str) -> list[dict[str, Any]]:
    """Return the phones in a phase."""
    return cluster.api.list(phones.collection("Pod"), fieldSelector=f"status.phase={phase}")


@item("A reboot with 120 phones and late devices: phones are rejected and replaced, wait, and run with the devices")
def devices_late(cluster: Cluster) -> None:
    provide(cluster)
    plugin.install(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, COUNT)
    phones.create(cluster, phones.deployment("web", COUNT))
    wait_phones(cluster)
    before = phones.container_of(plugin.pod_on(cluster, cluster.machine))[1]
    reboot(cluster)

    def restarted() -> bool:
        return phones.container_of(plugin.pod_on(cluster, cluster.machine))[1] > before

    until(restarted, "the plugin runs again", seconds=2 * PATIENCE)
    until(lambda: not pods_of(cluster, "Running"), "all phones are rejected or replaced", seconds=_MANY)
    assert plugin.capacity(cluster, cluster.machine) == (0, 0)
    (waiting, *_) = pods_of(cluster, "Pending")
    assert INSUFFICIENT in phones.reason(waiting), phones.reason(waiting)
    provide(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, COUNT)
    wait_phones(cluster)
    rejected = pods_of(cluster, "Failed")
    assert {pod["status"].get("reason") for pod in rejected} == {_REJECTED}, rejected
    assert len(rejected) <= COUNT, "replacements were rejected too"
    phones.remove(cluster, "Deployment", "web")


def _start_service(cluster: Cluster) -> EnteredDaemon:
    """Start the plugin as a process of the machine, and wait for it as deploy/systemd has the kubelet do."""
    config, machine = cluster.directory / "host-plugin.json", cluster.machine
    config.write_text(json.dumps(plugin.VALUES["config"]))
    command = [*machine.enter(), sys.executable, "-m", "aosp_plugin", "serve", f"--config={config}"]
    daemon = EnteredDaemon("plugin", command, cluster.directory / "plugin.log", {"PYTHONPATH": str(PROJECT)})
    daemon.start()
    (line,) = re.findall(r"(?m)^ExecStartPre=-(.*)$", (PROJECT / "deploy/systemd/kubelet.conf").read_text())
    machine.run(*shlex.split(line))
    return daemon


@item("A reboot of a host whose plugin is a service that the kubelet waits for: all 120 phones run again")
def plugin_as_service(cluster: Cluster) -> None:
    plugin.uninstall(cluster)
    host_plugin = _start_service(cluster)
    try:
        provide(cluster)
        plugin.wait_allocatable(cluster, cluster.machine, COUNT)
        phones.create(cluster, phones.deployment("web", COUNT))
        wait_phones(cluster)
        uids = {pod["metadata"]["uid"] for pod in pods_of(cluster, "Running")}

        def boot_script() -> None:
            provide(cluster)
            nonlocal host_plugin
            host_plugin = _start_service(cluster)

        reboot(cluster, boot_script)
        until(lambda: len(held.holders(cluster.machine)) == COUNT, "120 containers have devices", seconds=_MANY)
        wait_phones(cluster)
        assert {pod["metadata"]["uid"] for pod in pods_of(cluster, "Running")} == uids, "phones were replaced"
        assert not pods_of(cluster, "Failed")
        phones.remove(cluster, "Deployment", "web")
    finally:
        host_plugin.end()
    cluster.machine.nodes("delete")
    restore(cluster)
