"""Items: pods on a real binderfs, with a real kubelet, containerd and runc, and the plugin as the DaemonSet's pod.

``tests/e2e/kubelet`` covers the kubelet, and ``items_containers`` covers containers; these items require both.
containerd starts the probe inside the pods' containers.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel.item import Item, item
from tests.e2e.kernel.operations import (
    SHARED,
    compare,
    control_closed,
    forged_closed,
    inodes,
    others_closed,
    same_contexts,
    usable,
    words,
)
from tests.e2e.kubelet import rights, sandbox
from tests.e2e.kubelet.archive import busybox_image
from tests.e2e.kubelet.node import ALL, COUNT, Node, device_tool, names, natural_sort
from tests.e2e.kubelet.plugins import AsPod, configuration
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.standalone import Standalone
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Placed

WORK: Final = Path("/run/e2e-pods")


@dataclass
class PodWorld:
    """A node whose plugin is a pod, and the probe for its containers."""

    node: Node
    plugin: AsPod
    probe: Path

    def tries(self, pod: Placed, expected: dict[str, str]) -> None:
        """Try operations inside the pod's container, and check the results."""
        compare(expected, self.node.runtime.execute(pod.container_id(), "/bin/probe", *words(expected)))

    def hold(self, pod: Placed, name: str) -> None:
        """Start a process in the pod that becomes and stays the context manager of a device."""
        container_id = pod.container_id()
        self.node.runtime.execute(container_id, "/bin/probe", *words([f"manage /dev/{name}", "wait"]), detach=True)
        until(lambda: self.is_held(pod, name), f"{name} has a context manager")

    def is_held(self, pod: Placed, name: str) -> bool:
        """Return whether a device has a context manager, as seen by another process of the pod."""
        printed = self.node.runtime.execute(pod.container_id(), "/bin/probe", "manage", f"/dev/{name}")
        assert printed.strip() in {"ok", "EBUSY"}, printed
        return printed.strip() == "EBUSY"


def start(probe: Path, kubelet_binary: Path, image: Path) -> PodWorld:
    """Start containerd and a kubelet, and load the images; the first item starts the plugin."""
    sandbox.set_up(devices=False)
    WORK.mkdir()
    runtime = Runtime(WORK / "runtime")
    runtime.start()
    shutil.copy(probe, WORK / "probe")
    busybox_image(WORK / "busybox.tar", WORK / "probe")
    runtime.load(WORK / "busybox.tar")
    runtime.load(image)
    device_tool("create", "--count", str(COUNT))
    kubelet = Standalone(kubelet_binary, WORK / "kubelet", runtime.socket)
    kubelet.start()
    plugin = AsPod(WORK, kubelet, runtime)
    plugin.configure(configuration("", verify="binder"))
    return PodWorld(Node(kubelet, runtime, plugin), plugin, probe)


def advertised(world: PodWorld) -> None:
    """The DaemonSet's pod, without capabilities, advertises the 12 devices of a binderfs to a real kubelet."""
    world.plugin.start()
    world.node.wait_allocatable(ALL)
    rights.assert_no_privileges(world.node)
    rights.assert_no_devices(world.node)


def own_devices(world: PodWorld) -> None:
    """A pod that requests 3 devices has them in /dev and in its environment, and can use them."""
    pod, _ = world.node.phones
    view, held = pod.view(), pod.held()
    assert (len(held), view.binder_devices, view.opened) == (3, held, held), (
        f"{held} {view.binder_devices} {view.opened}"
    )
    assert view.visible == natural_sort(held), f"{view.visible}"
    world.tries(pod, usable(natural_sort(held)))


def tenants(world: PodWorld) -> None:
    """A second pod has 3 other devices; the context managers of both pods run at the same time."""
    first, second = world.node.phones
    assert not first.held() & second.held(), f"{first.held()} {second.held()}"
    for pod in (first, second):
        world.tries(pod, usable(natural_sort(pod.held())))
        for name in pod.held():
            world.hold(pod, name)


def others_devices(world: PodWorld) -> None:
    """Neither pod can open, delete, rename, change or copy the other one's devices, or open binder-control."""
    first, second = world.node.phones
    before = inodes()
    for pod, neighbour in ((first, second), (second, first)):
        mine, foreign = natural_sort(pod.held())[0], natural_sort(neighbour.held())[0]
        world.tries(pod, others_closed(mine, foreign) | forged_closed(foreign) | control_closed())
    assert inodes() == before, "the host's devices have changed"


def port(world: PodWorld) -> None:
    """Other pods reach probes and metrics at the plugin's pod's address, not the status, and nothing on loopback."""
    rights.assert_exposure(world.node)
    address = world.plugin.status()["podIP"]
    pod, _ = world.node.phones
    world.tries(pod, {f"connect {address} 9478": "ok", "connect 127.0.0.1 9478": "ECONNREFUSED"})
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", 9478)) == errno.ECONNREFUSED


def recreated(world: PodWorld) -> None:
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


def ended(world: PodWorld) -> None:
    """After the end of pods and plugin nothing is allocatable, and the command deletes devices and binderfs."""
    world.node.clear()
    world.plugin.stop()
    world.node.wait_allocatable(set())
    device_tool("delete")
    left = [name for name in names(*range(COUNT)) if os.path.lexists(f"/dev/{name}")]
    assert (left, os.path.ismount(BINDERFS)) == ([], False)


ITEMS: Final[list[Item[PodWorld]]] = [
    *(item(advertised), item(own_devices), item(tenants), item(others_devices), item(port)),
    *(item(recreated), item(ended)),
]
