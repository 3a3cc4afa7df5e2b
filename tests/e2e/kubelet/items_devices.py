"""Items: binder devices are created, deleted and replaced while pods use them; and the end of the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.node import ALL, create_devices, names, remove_devices
from tests.e2e.kubelet.plugins import sockets
from tests.e2e.kubelet.versions import HEALTH
from tests.e2e.kubelet.waiting import holds, until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node, Placed

item = Items()
ignored = Items()


@item("The binder device of a running pod is deleted and created again: not allocatable meanwhile; the pod runs on")
def device_vanishes(node: Node) -> None:
    phone, _ = node.phones
    container, held = phone.container_id(), phone.held()
    gone = _first_of(phone)
    remove_devices(gone)
    node.wait_allocatable(ALL - names(gone))
    holds(lambda: phone.container_id() == container and phone.held() == held, "the pod runs on", seconds=3)
    create_devices()
    node.wait_allocatable(ALL)
    assert phone.container_id() == container, "the container is the same"


@item(
    "The binder device of a running pod is deleted and created again: its status has Unhealthy, then Healthy",
    HEALTH.required,
)
def health(node: Node) -> None:
    phone, _ = node.phones
    held, gone = phone.held(), _first_of(phone)
    remove_devices(gone)
    expected = dict.fromkeys(held, "Healthy") | dict.fromkeys(names(gone), "Unhealthy")
    until(lambda: node.health(phone) == expected, f"the pod's status reports {expected}")
    create_devices()
    node.wait_allocatable(ALL)
    until(lambda: node.health(phone) == dict.fromkeys(held, "Healthy"), "the pod's status reports Healthy")


def _first_of(phone: Placed) -> int:
    """Return the lowest number of a pod's binder devices."""
    return min(int(name.removeprefix("aosp_binder")) for name in phone.held())


@item("A container that restarts while its binder device is missing waits for it, and then has the same devices")
def restart_without_device(node: Node) -> None:
    phone, _ = node.phones
    before = phone.view().binder_devices
    number = _first_of(phone)
    remove_devices(number)
    node.wait_allocatable(ALL - names(number))
    container = phone.container_id()
    node.runtime.kill(container)
    until(lambda: "waiting" in phone.container()["state"], "the container waits")
    create_devices()
    node.wait_allocatable(ALL)
    until(lambda: phone.container_id() != container, "the container runs again")
    assert phone.view().binder_devices == before, f"{phone.view().binder_devices}, before: {before}"


@ignored("Counter-example: a container that restarts while its binder device is missing starts without it")
def started_without_device(node: Node) -> None:
    phone, _ = node.phones
    before = phone.view().binder_devices
    number = _first_of(phone)
    remove_devices(number)
    node.wait_allocatable(ALL - names(number))
    phone.restart_container()
    assert phone.view().binder_devices == before - names(number), f"{phone.view().binder_devices}, before: {before}"
    create_devices()
    node.wait_allocatable(ALL)


@item("SIGTERM ends the plugin within its grace period; its socket is removed, and the kubelet has nothing to allocate")
def ends(node: Node) -> None:
    node.clear()
    node.plugin.stop()
    assert not sockets(), f"{sockets()}"
    node.wait_allocatable(set())
    assert not node.kubelet.held(node.resource), f"{node.kubelet.held(node.resource)}"
