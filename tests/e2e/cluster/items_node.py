"""A Node object that is deleted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import held, load, phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.items import Items
from tests.e2e.common.report import say

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
