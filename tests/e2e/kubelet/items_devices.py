"""Items: nodes appear, remove_devices and fall ill while pods have them; and the end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.node import ALL, COUNT, create_devices, hack, names, remove_devices
from tests.e2e.kubelet.plugins import sockets
from tests.e2e.kubelet.waiting import holds, until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node

item = Items()


@item("Nodes appear: the kubelet can allocate them")
def appear(node: Node) -> None:
    node.wait_allocatable(ALL)
    create_devices(COUNT + 2)
    node.wait_allocatable(ALL | names(COUNT, COUNT + 1))
    assert node.status() == (COUNT + 2, COUNT + 2), f"capacity and allocatable: {node.status()}"


@item("Nodes remove_devices: they are no longer allocatable, and still counted as capacity")
def disappear(node: Node) -> None:
    remove_devices(COUNT, COUNT + 1)
    node.wait_allocatable(ALL)
    assert node.status() == (COUNT + 2, COUNT), f"capacity and allocatable: {node.status()}"


@item(
    "A running pod's node vanishes: the pod goes on, its status calls the node Unhealthy, and Healthy once it is back"
)
def device_vanishes(node: Node) -> None:
    phone, _ = node.phones
    container, held = phone.container_id(), phone.held()
    number = min(int(name.removeprefix("aosp_binder")) for name in held)
    gone = names(number)
    remove_devices(number)
    node.wait_allocatable(ALL - gone)
    expected = dict.fromkeys(held - gone, "Healthy") | dict.fromkeys(gone, "Unhealthy")
    until(lambda: node.health(phone) == expected, f"the pod's status has {expected}")
    holds(lambda: phone.container_id() == container and phone.held() == held, "the pod goes on", seconds=3)
    create_devices()
    node.wait_allocatable(ALL)
    until(lambda: set(node.health(phone).values()) == {"Healthy"}, "the pod's status calls it Healthy")
    assert phone.container_id() == container, "the container is the same"


@item("A container that restarts while its node is away waits for the node, and then has the same ones")
def restart_without_node(node: Node) -> None:
    phone, _ = node.phones
    before = phone.view().nodes
    number = min(int(name.removeprefix("aosp_binder")) for name in before)
    remove_devices(number)
    node.wait_allocatable(ALL - names(number))
    container = phone.container_id()
    node.runtime.kill(container)
    until(lambda: "waiting" in phone.container()["state"], "the container waits")
    create_devices()
    node.wait_allocatable(ALL)
    until(lambda: phone.container_id() != container, "the container runs again")
    assert phone.view().nodes == before, f"{phone.view().nodes}, before: {before}"


@item("A file takes a node's place: Unhealthy. The node is there again: Healthy")
def falls_ill(node: Node) -> None:
    free = min(ALL - set().union(*(phone.held() for phone in node.phones)))
    path = Path("/dev", free)
    path.unlink()
    path.touch()
    node.wait_allocatable(ALL - {free})
    path.unlink()
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    node.wait_allocatable(ALL)


@item("Every node vanishes, and every node comes back: 0, then all; the pods go on")
def all_flip(node: Node) -> None:
    before = [phone.container_id() for phone in node.phones]
    remove_devices(*range(COUNT))
    node.wait_allocatable(set())
    create_devices()
    node.wait_allocatable(ALL)
    assert [phone.container_id() for phone in node.phones] == before, "the pods go on"


@item("SIGTERM ends the plugin within its time, its socket is gone, and the kubelet has nothing to allocate")
def ends(node: Node) -> None:
    node.clear()
    node.plugin.stop()
    assert not sockets(), f"{sockets()}"
    node.wait_allocatable(set())
    assert not node.kubelet.held(node.resource), f"{node.kubelet.held(node.resource)}"


@item("hack/binder_nodes.py deletes every node that it made")
def deleted(_node: Node) -> None:
    hack("delete")
    left = list(Path("/dev").glob("aosp_binder*"))
    assert not left, f"left: {left}"
    create_devices()
