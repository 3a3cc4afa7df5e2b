"""Kubelet and plugin restart, are killed or are stopped; pods keep their devices."""

import signal
from collections.abc import Callable, Sequence

from tests.e2e.common.waiting import holds, until
from tests.e2e.kubelet.node import ALL, COUNT, Node, Placed
from tests.e2e.kubelet.plugins import sockets
from tests.e2e.kubelet.pods import RESOURCE


def _keeping(node: Node, event: Callable[[], None]) -> None:
    """Check that both pods and their containers survive an event, and that a container restarted later is the same.

    A pod whose container was restarted is replaced: see the README on restarts of the kubelet.
    """
    phones = node.phones
    before = _states(phones)
    event()
    until(lambda: node.kubelet.registrations(RESOURCE) >= 1, "the plugin registers")
    node.wait_allocatable(ALL)
    assert until(lambda: _states(phones), "both pods run") == before
    devices = phones[1].view().binder_devices
    phones[1].restart_container()
    assert phones[1].view().binder_devices == devices
    until(lambda: len(sockets()) == 1, "the plugin has one socket")
    node.retire(phones[1])


def _states(phones: Sequence[Placed]) -> list[tuple[str, int, set[str], set[str]]]:
    return [
        (phone.container_id(), phone.container()["restartCount"], phone.held(), phone.view().binder_devices)
        for phone in phones
    ]


def test_kubelet_restarts(node: Node) -> None:
    """The kubelet restarts: the plugin registers again without a restart, and pods keep running with their devices."""
    plugin = node.plugin.identity()
    _keeping(node, node.kubelet.restart)
    assert node.plugin.identity() == plugin, "the plugin has restarted"


def test_plugin_killed(node: Node) -> None:
    """The plugin is killed: it registers again, its stale socket is removed, and pods keep their devices."""

    def event() -> None:
        registered = node.kubelet.registrations(RESOURCE)
        plugin = node.plugin.identity()
        node.plugin.interrupt(signal.SIGKILL)
        until(lambda: node.plugin.identity() != plugin, "another plugin runs")
        until(lambda: node.kubelet.registrations(RESOURCE) > registered, "the plugin registers")

    _keeping(node, event)


def test_runtime_restarts(node: Node) -> None:
    """The container runtime restarts: pods keep running with their devices."""
    _keeping(node, node.runtime.restart)


def test_plugin_away(node: Node) -> None:
    """The plugin is stopped: allocatable is 0 within 30 s, and new pods are rejected; capacity and pods stay.

    The kubelet restarts meanwhile: the pods keep running, and List reports their devices.
    """
    phones = node.phones
    before = _states(phones)
    node.stop_plugin()
    assert node.status() == (COUNT, 0)
    holds(lambda: _states(phones) == before, "the pods are unchanged", seconds=3)
    node.assert_rejected(1, f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}")
    node.kubelet.restart()
    until(lambda: _states(phones) == before, "the pods are unchanged")
    assert not node.kubelet.allocatable(RESOURCE)
    holds(lambda: _states(phones) == before, "the pods are unchanged", seconds=3)


def test_reboot(node: Node) -> None:
    """The node reboots and the plugin starts late: the kubelet rejects old pods; new pods run."""
    phones = node.phones
    node.stop_plugin()
    node.kubelet.stop()
    node.runtime.crash()
    node.kubelet.start()
    until(lambda: {phone.status["phase"] for phone in phones} == {"Failed"}, "both pods are rejected")
    assert {phone.status["reason"] for phone in phones} == {"UnexpectedAdmissionError"}
    node.clear()
    node.plugin.start()
    node.wait_allocatable(ALL)
    assert len(node.phones[0].view().binder_devices) == 3
