"""Items: kubelet and plugin restart, are killed or are stopped; pods keep their devices."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.items_pods import REGISTRATIONS
from tests.e2e.kubelet.node import ALL, COUNT
from tests.e2e.kubelet.plugins import sockets
from tests.e2e.kubelet.pods import DONE, RESOURCE, container
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


def _kubelet(node: Node, number: signal.Signals) -> None:
    plugin = node.plugin.identity()

    def event() -> None:
        node.kubelet.stop(number)
        node.kubelet.start()

    _keeping(node, event)
    assert node.plugin.identity() == plugin, "the plugin has restarted"


@item("The kubelet restarts: the plugin registers again without a restart, and pods keep running with their devices")
def kubelet_restarts(node: Node) -> None:
    _kubelet(node, signal.SIGTERM)


@item("The kubelet is killed: the plugin registers again, and pods keep running with their devices")
def kubelet_killed(node: Node) -> None:
    _kubelet(node, signal.SIGKILL)


def _plugin(node: Node, number: signal.Signals) -> None:
    def event() -> None:
        registered = node.kubelet.metric(REGISTRATIONS, RESOURCE)
        plugin = node.plugin.identity()
        node.plugin.interrupt(number)
        until(lambda: node.plugin.identity() != plugin, "another plugin runs")
        until(lambda: node.kubelet.metric(REGISTRATIONS, RESOURCE) > registered, "the plugin registers")

    _keeping(node, event)


@item("The plugin restarts: it registers again, and pods keep running with their devices")
def plugin_restarts(node: Node) -> None:
    _plugin(node, signal.SIGTERM)


@item("The plugin is killed: it registers again, its stale socket is removed, and pods keep their devices")
def plugin_killed(node: Node) -> None:
    _plugin(node, signal.SIGKILL)


def _both(node: Node, number: signal.Signals) -> None:
    plugin = node.plugin.identity()

    def event() -> None:
        node.kubelet.stop(number)
        node.plugin.interrupt(number)
        node.kubelet.start()
        until(lambda: node.plugin.identity() != plugin, "another plugin runs")

    _keeping(node, event)


@item("Kubelet and plugin restart at the same time: pods keep running with their devices")
def both_restart(node: Node) -> None:
    _both(node, signal.SIGTERM)


@item("Kubelet and plugin are killed at the same time: pods keep running with their devices")
def both_killed(node: Node) -> None:
    _both(node, signal.SIGKILL)


@item("The container runtime restarts: pods keep running with their devices")
def runtime_restarts(node: Node) -> None:
    _keeping(node, node.runtime.restart)


@item("The plugin is stopped: allocatable is 0 within 30 s, capacity stays, and pods keep running with their devices")
def plugin_away(node: Node) -> None:
    phones = node.phones
    before = [_state(phone) for phone in phones]
    node.stop_plugin()
    assert node.status() == (COUNT, 0), f"capacity and allocatable: {node.status()}"
    holds(lambda: [_state(phone) for phone in phones] == before, "the pods are unchanged", seconds=3)


@item("The kubelet rejects a pod that is created while the plugin is stopped")
def rejected_meanwhile(node: Node) -> None:
    node.stop_plugin()
    text = f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"
    node.assert_rejected(1, text)


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


@item("The plugin starts again: all devices are allocatable, pods keep theirs, and a new pod gets others")
def plugin_back(node: Node) -> None:
    phones = node.phones
    before = [_state(phone) for phone in phones]
    node.stop_plugin()
    node.plugin.start()
    node.wait_allocatable(ALL)
    assert [_state(phone) for phone in phones] == before, "the pods are unchanged"
    with node.running(container("main", 2)) as pod:
        taken = set().union(*(phone.held() for phone in phones))
        assert not pod.view().binder_devices & taken, f"{pod.view().binder_devices} of {taken}"


@item("A pod is removed while the kubelet is down: its devices are free afterwards")
def removed_meanwhile(node: Node) -> None:
    taken = COUNT - sum(len(phone.held()) for phone in node.phones)
    pod = node.place(container("main", taken))
    pod.wait_phase("Running")
    devices = pod.view().binder_devices
    node.kubelet.stop()
    node.kubelet.delete(pod.name)
    node.kubelet.start()
    node.wait_allocatable(ALL)
    until(lambda: pod.name not in {name for name, _ in node.kubelet.held(RESOURCE)}, "List no longer reports the pod")
    with node.running(container("main", taken)) as successor:
        assert successor.view().binder_devices == devices, f"{successor.view().binder_devices}, free: {devices}"


@item("A kubelet that restarts without the plugin reports a finished pod as Succeeded")
def finished_stays(node: Node) -> None:
    """It rejects the pod first, because it has no status of a static pod, but then finds the container that exited."""
    done = node.place(container("main", 1, then=DONE), restartPolicy="Never")
    try:
        done.wait_phase("Succeeded")
        node.plugin.stop()
        node.kubelet.stop()
        node.kubelet.start()
        done.wait_phase("Succeeded")
        holds(lambda: done.status["phase"] == "Succeeded", "it stays Succeeded", seconds=3)
    finally:
        node.plugin.start()
        node.remove(done)
        node.wait_allocatable(ALL)


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
