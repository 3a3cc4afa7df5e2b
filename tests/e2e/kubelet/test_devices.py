"""Binder devices are created, deleted and replaced while pods use them; and the end of the plugin."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.e2e.common.waiting import holds, until
from tests.e2e.kubelet.node import ALL, Node, Placed, create_devices, names, remove_devices
from tests.e2e.kubelet.plugins import sockets
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.versions import HEALTH


@contextlib.contextmanager
def _missing_device(node: Node, phone: Placed) -> Iterator[set[str]]:
    """Delete a binder device of a pod, which is not allocatable while the context lasts; yield its name."""
    number = min(int(name.removeprefix(PREFIX)) for name in phone.held())
    remove_devices(number)
    node.wait_allocatable(ALL - names(number))
    yield names(number)
    create_devices()
    node.wait_allocatable(ALL)


def test_device_vanishes(node: Node) -> None:
    """The pod of a binder device that is deleted and created again runs on, and keeps it."""
    phone, _ = node.phones
    container, held = phone.container_id(), phone.held()
    with _missing_device(node, phone):
        holds(lambda: phone.container_id() == container and phone.held() == held, "the pod runs on", seconds=3)
    assert phone.container_id() == container


@pytest.mark.requires(HEALTH.required)
def test_health(node: Node) -> None:
    """The status of the pod of a binder device that is deleted and created again has Unhealthy, then Healthy."""
    phone, _ = node.phones
    healthy = dict.fromkeys(phone.held(), "Healthy")
    with _missing_device(node, phone) as gone:
        expected = healthy | dict.fromkeys(gone, "Unhealthy")
        until(lambda: node.health(phone) == expected, f"the pod's status reports {expected}")
    until(lambda: node.health(phone) == healthy, "the pod's status reports Healthy")


def test_restart_without_device(node: Node) -> None:
    """A container that restarts while its binder device is missing waits for it, and then has the same devices."""
    phone, _ = node.phones
    before, container = phone.view().binder_devices, phone.container_id()
    with _missing_device(node, phone):
        node.runtime.kill(container)
        until(lambda: "waiting" in phone.container()["state"], "the container waits")
    until(lambda: phone.container_id() != container, "the container runs again")
    assert phone.view().binder_devices == before


def test_started_without_device(node: Node) -> None:
    """Counter-example: a container that restarts while its binder device is missing starts without it."""
    phone, _ = node.phones
    before = phone.view().binder_devices
    with _missing_device(node, phone) as gone:
        phone.restart_container()
        assert phone.view().binder_devices == before - gone


def test_ends(node: Node) -> None:
    """SIGTERM ends the plugin within its grace period: it leaves no socket, and the kubelet nothing to allocate."""
    node.clear()
    node.plugin.stop()
    assert not sockets()
    node.wait_allocatable(set())
    assert not node.kubelet.held(node.resource)
