"""Pods on a real binderfs, with a real kubelet, containerd and runc, and the plugin as the DaemonSet's pod.

``tests/e2e/kubelet`` covers the kubelet, and ``test_containers`` covers containers; these tests require both.
containerd starts the probe inside the pods' containers.
"""

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from aosp_plugin.binder.driver import binderfs
from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.common.waiting import until
from tests.e2e.kernel.operations import (
    SHARED,
    control_closed,
    forged_closed,
    inodes,
    others_closed,
    same_contexts,
    usable,
)
from tests.e2e.kernel.pods import WORK, Host, PodWorld
from tests.e2e.kernel.systemd import linked, numbers_of
from tests.e2e.kubelet import rights
from tests.e2e.kubelet.node import ALL, COUNT, Node, device_tool, names, natural_sort
from tests.e2e.kubelet.plugins import AsPod, configuration


@pytest.fixture(scope="module")
def world(host: Host) -> Iterator[PodWorld]:
    """Serve the devices of a binderfs by the DaemonSet's pod. At the end, nothing is left of them but links."""
    device_tool("create", "--count", str(COUNT))
    plugin = AsPod(WORK, *host)
    plugin.configure(configuration("", verify="binder"))
    world = PodWorld(Node(*host, plugin))
    plugin.start()
    world.node.wait_allocatable(ALL)
    yield world
    world.node.clear()
    plugin.stop()
    world.node.wait_allocatable(set())
    device_tool("delete")
    left = [name for name in names(*range(COUNT)) if os.path.lexists(f"/dev/{name}")]
    assert (left, os.path.ismount(BINDERFS)) == ([], False)


def test_advertised(world: PodWorld) -> None:
    """The DaemonSet's pod, without capabilities, advertises the 12 devices of a binderfs to a real kubelet."""
    rights.assert_no_privileges(world.node)
    rights.assert_no_devices(world.node)


def test_linked(world: PodWorld) -> None:
    """It links the devices on the host by their numbers, which runc 1.1.3 to 1.1.6 requires."""
    expected = numbers_of(f"{BINDERFS}/{name}" for name in names(*range(COUNT)))
    until(lambda: linked() == expected, "the devices are linked")


def test_own_devices(world: PodWorld) -> None:
    """A pod that requests 3 devices has them in /dev and in its environment, and can use them."""
    pod, _ = world.node.phones
    view, held = pod.view(), pod.held()
    assert (len(held), view.binder_devices, view.opened) == (3, held, held)
    assert view.visible == natural_sort(held)
    world.tries(pod, usable(natural_sort(held)))


def test_tenants(world: PodWorld) -> None:
    """A second pod has 3 other devices; the context managers of both pods run at the same time."""
    first, second = world.node.phones
    assert not first.held() & second.held()
    for pod in (first, second):
        world.tries(pod, usable(natural_sort(pod.held())))
        for name in pod.held():
            world.hold(pod, name)


def test_others_devices(world: PodWorld) -> None:
    """Neither pod can open, delete, rename, change or copy the other one's devices, or open binder-control."""
    first, second = world.node.phones
    before = inodes()
    for pod, neighbour in ((first, second), (second, first)):
        mine, foreign = natural_sort(pod.held())[0], natural_sort(neighbour.held())[0]
        world.tries(pod, others_closed(mine, foreign) | forged_closed(foreign) | control_closed())
    assert inodes() == before, "the host's devices have changed"


def test_port(world: PodWorld) -> None:
    """Other pods reach probes and metrics at the plugin's pod's address, not the status, and nothing on loopback."""
    rights.assert_exposure(world.node)
    address = world.plugin.status()["podIP"]
    pod, _ = world.node.phones
    world.tries(pod, {f"connect {address} 9478": "ok", "connect 127.0.0.1 9478": "ECONNREFUSED"})
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", 9478)) == errno.ECONNREFUSED


def test_recreated(world: PodWorld) -> None:
    """A pod's device is deleted: Unhealthy; created again: Healthy. The pod has the old one until it restarts."""
    pod, _ = world.node.phones
    name = natural_sort(pod.held())[0]
    binderfs.remove_device(BINDERFS, name)
    world.node.wait_allocatable(ALL - {name})
    until(lambda: world.node.health(pod).get(name) == "Unhealthy", "the pod's status reports Unhealthy")
    binderfs.add_device(BINDERFS, name)
    os.chmod(f"{BINDERFS}/{name}", 0o666)
    world.node.wait_allocatable(ALL)
    until(lambda: world.node.health(pod).get(name) == "Healthy", "the pod's status reports Healthy")
    assert world.is_held(pod, name), "the old device has lost its context manager"
    world.tries(pod, {f"open {SHARED}/{name}": "EPERM"})
    pod.restart_container()
    pod.view()
    world.tries(pod, usable(natural_sort(pod.held())) | same_contexts([name]))
