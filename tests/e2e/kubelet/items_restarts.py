"""Items: kubelet and plugin restart, are killed, or stay away; pods keep what they have."""

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
    """Check that an event leaves both pods as they were, containers too, and that a container started later fits.

    A pod whose container was started again is not used any longer: see the README on kubelets that restart.
    """
    phones = node.phones
    before = [_state(phone) for phone in phones]
    event()
    until(lambda: node.kubelet.metric(REGISTRATIONS, RESOURCE) >= 1, "the plugin registers")
    node.wait_allocatable(ALL)
    for phone, then in zip(phones, before, strict=True):
        now = until(lambda phone=phone: _state(phone), f"{phone.name} is there")  # type: ignore[misc]
        assert now == then, f"{phone.name}: {now}, before: {then}"
    nodes = phones[1].view().nodes
    phones[1].restart_container()
    assert phones[1].view().nodes == nodes, f"after the container's restart: {phones[1].view().nodes}, before: {nodes}"
    until(lambda: len(sockets()) == 1, "the plugin has one socket")
    node.retire(phones[1])


def _state(phone: Placed) -> tuple[str, int, set[str], set[str]]:
    return phone.container_id(), phone.container()["restartCount"], phone.held(), phone.view().nodes


def _kubelet(node: Node, number: signal.Signals) -> None:
    plugin = node.plugin.identity()

    def event() -> None:
        node.kubelet.stop(number)
        node.kubelet.start()

    _keeping(node, event)
    assert node.plugin.identity() == plugin, "the plugin went through it without a restart"


@item("The kubelet restarts: the plugin registers again by itself, pods go on, with the same nodes")
def kubelet_restarts(node: Node) -> None:
    _kubelet(node, signal.SIGTERM)


@item("The kubelet is killed: the same")
def kubelet_killed(node: Node) -> None:
    _kubelet(node, signal.SIGKILL)


def _plugin(node: Node, number: signal.Signals) -> None:
    def event() -> None:
        registered = node.kubelet.metric(REGISTRATIONS, RESOURCE)
        plugin = node.plugin.identity()
        node.plugin.hit(number)
        until(lambda: node.plugin.identity() != plugin, "another plugin runs")
        until(lambda: node.kubelet.metric(REGISTRATIONS, RESOURCE) > registered, "it registers")

    _keeping(node, event)


@item("The plugin restarts: it registers again, pods go on, with the same nodes")
def plugin_restarts(node: Node) -> None:
    _plugin(node, signal.SIGTERM)


@item("The plugin is killed: the same, and its stale socket is swept")
def plugin_killed(node: Node) -> None:
    _plugin(node, signal.SIGKILL)


def _both(node: Node, number: signal.Signals) -> None:
    plugin = node.plugin.identity()

    def event() -> None:
        node.kubelet.stop(number)
        node.plugin.hit(number)
        node.kubelet.start()
        until(lambda: node.plugin.identity() != plugin, "another plugin runs")

    _keeping(node, event)


@item("Kubelet and plugin restart at once: pods go on, with the same nodes")
def both_restart(node: Node) -> None:
    _both(node, signal.SIGTERM)


@item("Kubelet and plugin are killed at once: the same")
def both_killed(node: Node) -> None:
    _both(node, signal.SIGKILL)


@item("The plugin stays away: within 30 s nothing is allocatable, capacity stays, pods go on with what they have")
def plugin_away(node: Node) -> None:
    phones = node.phones
    before = [_state(phone) for phone in phones]
    node.away()
    assert node.status() == (COUNT, 0), f"capacity and allocatable: {node.status()}"
    holds(lambda: [_state(phone) for phone in phones] == before, "the pods are as they were", seconds=3)


@item("A pod that comes meanwhile is refused, in the kubelet's words")
def refused_meanwhile(node: Node) -> None:
    node.away()
    text = f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"
    node.refuse(1, f"Allocate failed due to {text}, which is unexpected")


@item("The kubelet restarts meanwhile: the pods still go on, and List knows what they have")
def kubelet_restarts_meanwhile(node: Node) -> None:
    phones = node.phones
    before = [_state(phone) for phone in phones]
    node.away()
    node.kubelet.stop()
    node.kubelet.start()
    for phone, then in zip(phones, before, strict=True):
        until(lambda phone=phone, then=then: _state(phone) == then, f"{phone.name} is as it was")  # type: ignore[misc]
    assert not node.kubelet.allocatable(RESOURCE), "nothing is allocatable"
    holds(lambda: [_state(phone) for phone in phones] == before, "the pods are as they were", seconds=3)


@item("The plugin comes back: all is allocatable, the pods have the same nodes, and a new pod gets others")
def plugin_back(node: Node) -> None:
    phones = node.phones
    before = [_state(phone) for phone in phones]
    node.away()
    node.plugin.start()
    node.wait_allocatable(ALL)
    assert [_state(phone) for phone in phones] == before, "the pods are as they were"
    with node.running(container("main", 2)) as pod:
        taken = set().union(*(phone.held() for phone in phones))
        assert not pod.view().nodes & taken, f"{pod.view().nodes} of {taken}"


@item("A pod is removed while the kubelet is down: its nodes are free afterwards")
def removed_meanwhile(node: Node) -> None:
    taken = COUNT - sum(len(phone.held()) for phone in node.phones)
    pod = node.place(container("main", taken))
    pod.wait_phase("Running")
    nodes = pod.view().nodes
    node.kubelet.stop()
    node.kubelet.take(pod.name)
    node.kubelet.start()
    node.wait_allocatable(ALL)
    until(lambda: pod.name not in {name for name, _ in node.kubelet.held(RESOURCE)}, "List has forgotten the pod")
    with node.running(container("main", taken)) as other:
        assert other.view().nodes == nodes, f"{other.view().nodes}, free: {nodes}"


@item("A finished pod is left alone by a kubelet that restarts without the plugin")
def finished_stays(node: Node) -> None:
    done = node.place(container("main", 1, then=DONE), restartPolicy="Never")
    try:
        done.wait_phase("Succeeded")
        node.plugin.stop()
        node.kubelet.stop()
        node.kubelet.start()
        until(lambda: done.status["phase"] != "Pending", "the kubelet knows the pod")
        phase, message = done.status["phase"], done.status.get("message")
        assert phase == "Succeeded", f"{phase}: {message}"
    finally:
        node.plugin.start()
        node.remove(done)
        node.wait_allocatable(ALL)


@item("The node reboots and the plugin comes late: pods of before are refused, and run once they are made again")
def reboot(node: Node) -> None:
    phones = node.phones
    node.away()
    node.kubelet.stop()
    node.runtime.crash()
    node.kubelet.start()
    for phone in phones:
        until(lambda phone=phone: phone.status["phase"] == "Failed", f"{phone.name} is refused")  # type: ignore[misc]
        assert phone.status["reason"] == "UnexpectedAdmissionError", phone.status
    node.clear()
    node.plugin.start()
    node.wait_allocatable(ALL)
    assert len(node.phones[0].view().nodes) == 3, "made again, it has its nodes"
