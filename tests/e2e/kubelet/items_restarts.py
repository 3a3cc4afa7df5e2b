"""Items: kubelet and plugin restart, are killed or are stopped; pods keep their devices."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.items_pods import REGISTRATIONS
from tests.e2e.kubelet.node import ALL, COUNT
from tests.e2e.kubelet.plugins import sockets
from tests.e2e.kubelet.pods import RESOURCE
from tests.e2e.kubelet.waiting import holds, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.kubelet.node import Node, Placed

item = Items()


def _keeping(node: Node, event: Callable[[], None]) -> None:
    """Check that both pods and their containers survive an event, and that a container restarted later is the same.

    A pod whose container was restarted is replaced: see the README on restarts of the kubelet.
    """
    phones = node.phones
    before = [_state(phone) for phone in phones]
    event()
    until(lambda: node.kubelet.metric(REGISTRATIONS, RESOURCE) >= 1, "the plugin registers")
    node.wait_allocatable(ALL)
    for phone, then in zip(phones, before, strict=True):
        now = until(lambda phone=phone: _state(phone), f"{phone.name} runs")  # type: ignore[misc]
        assert now == then, f"{phone.name}: {now}, before: {then}"
    devices = phones[1].view().binder_devices
    phones[1].restart_container()
    assert phones[1].view().binder_devices == devices, (
        f"after the container's restart: {phones[1].view().binder_devices}, before: {devices}"
    )
    until(lambda: len(sockets()) == 1, "the plugin has one socket")
    node.retire(phones[1])


def _state(phone: Placed) -> tuple[str, int, set[str], set[str]]:
    return phone.container_id(), phone.container()["restartCount"], phone.held(), phone.view().binder_devices


@item("The kubelet restarts: the plugin registers again without a restart, and pods keep running with their devices")
def kubelet_restarts(node: Node) -> None:
    plugin = node.plugin.identity()

    def event() -> None:
        node.kubelet.stop()
        node.kubelet.start()

    _keeping(node, event)
    assert node.plugin.identity() == plugin, "the plugin has restarted"


@item("The plugin is killed: it registers again, its stale socket is removed, and pods keep their devices")
def plugin_killed(node: Node) -> None:
    def event() -> None:
        registered = node.kubelet.metric(REGISTRATIONS, RESOURCE)
        plugin = node.plugin.identity()
        node.plugin.interrupt(signal.SIGKILL)
        until(lambda: node.plugin.identity() != plugin, "another plugin runs")
        until(lambda: node.kubelet.metric(REGISTRATIONS, RESOURCE) > registered, "the plugin registers")

    _keeping(node, event)


@item("The container runtime restarts: pods keep running with their devices")
def runtime_restarts(node: Node) -> None:
    _keeping(node, node.runtime.restart)


@item("The plugin is stopped: allocatable is 0 within 30 s, and new pods are rejected; capacity and pods stay")
def plugin_away(node: Node) -> None:
    phones = node.phones
    before = [_state(phone) for phone in phones]
    node.stop_plugin()
    assert node.status() == (COUNT, 0), f"capacity and allocatable: {node.status()}"
    holds(lambda: [_state(phone) for phone in phones] == before, "the pods are unchanged", seconds=3)
    node.assert_rejected(1, f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}")


@item("The kubelet restarts while the plugin is stopped: the pods keep running, and List reports their devices")
def kubelet_restarts_meanwhile(node: Node) -> None:
    phones = node.phones
    before = [_state(phone) for phone in phones]
    node.stop_plugin()
    node.kubelet.stop()
    node.kubelet.start()
    for phone, then in zip(phones, before, strict=True):
        until(lambda phone=phone, then=then: _state(phone) == then, f"{phone.name} is unchanged")  # type: ignore[misc]
    assert not node.kubelet.allocatable(RESOURCE), "nothing is allocatable"
    holds(lambda: [_state(phone) for phone in phones] == before, "the pods are unchanged", seconds=3)


@item("The node reboots and the plugin starts late: the kubelet rejects old pods; new pods run")
def reboot(node: Node) -> None:
    phones = node.phones
    node.stop_plugin()
    node.kubelet.stop()
    node.runtime.crash()
    node.kubelet.start()
    for phone in phones:
        until(lambda phone=phone: phone.status["phase"] == "Failed", f"{phone.name} is rejected")  # type: ignore[misc]
        assert phone.status["reason"] == "UnexpectedAdmissionError", phone.status
    node.clear()
    node.plugin.start()
    node.wait_allocatable(ALL)
    assert len(node.phones[0].view().binder_devices) == 3, "the new pod has its devices"
