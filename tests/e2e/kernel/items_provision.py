"""The pod of deploy/provision on a real binderfs: it makes nodes on the host, keeps them, and finds who holds them.

After the items of ``items_pods``, in the same boot, once their plugin has gone. The pod is what kustomize makes of
``deploy/provision``, with the rights that it has there.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from typing import TYPE_CHECKING, Any, Final

import yaml

from aosp_plugin.binder.driver import binderfs
from tests.e2e.deploy.manifests import configuration, the
from tests.e2e.deploy.parts import DEPLOY, run
from tests.e2e.kernel.item import Item, item
from tests.e2e.kernel.items_pods import PodWorld
from tests.e2e.kernel.operations import others_closed, usable
from tests.e2e.kubelet.node import Node, hack, names, natural_sort
from tests.e2e.kubelet.plugins import AsPod
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NODES: Final = "/run/aosp-binderfs/nodes"
PROVISIONED: Final = names(*range(360))
LEAK_SCAN_INTERVAL: Final = "leak_scan_interval: 5"
"""Seconds, where the manifest has minutes."""


def start(before: PodWorld, kustomize: Path, directory: Path) -> PodWorld:
    """Return the same node with the other plugin, which does not run yet."""
    manifests = list(yaml.safe_load_all(run(str(kustomize), "build", str(DEPLOY / "provision"))))
    text = configuration(manifests)
    assert "leak_scan_interval: 300" in text, text
    directory.mkdir()
    plugin = AsPod(directory, before.node.kubelet, before.node.runtime, the("DaemonSet", manifests))
    plugin.configure(text.replace("leak_scan_interval: 300", LEAK_SCAN_INTERVAL))
    return PodWorld(Node(before.node.kubelet, before.node.runtime, plugin, devices=PROVISIONED), plugin, before.probe)


def makes(world: PodWorld) -> None:
    """The pod of deploy/provision, on a host that has no node, makes 360 and advertises them; its probes pass."""
    world.plugin.start()
    world.node.wait_allocatable(PROVISIONED)
    until(lambda: world.plugin.status()["containerStatuses"][0]["ready"], "the pod is ready")


def on_the_host(_world: PodWorld) -> None:
    """They are the host's: a binderfs that it mounted there, with room for 4096, nodes of mode 0666, links in /dev."""
    mounted = binderfs.mount_at(NODES)
    assert mounted is not None, "the host has no binderfs there"
    assert mounted.max_devices == 4096, f"{mounted}"
    assert _inodes().keys() == PROVISIONED, f"{len(_inodes())} nodes"
    for name in PROVISIONED:
        assert os.readlink(f"/dev/{name}") == f"{NODES}/{name}", name
        assert stat.S_IMODE(os.stat(f"/dev/{name}").st_mode) == 0o666, name


def work(world: PodWorld) -> None:
    """Two pods that ask for 3 each get them: each opens, answers 8 and takes a context manager; others' don't open."""
    first, second = world.node.phones
    for pod, neighbour in ((first, second), (second, first)):
        world.tries(pod, usable(natural_sort(pod.held())))
        world.tries(pod, others_closed(natural_sort(pod.held())[0], natural_sort(neighbour.held())[0]))


def clean(world: PodWorld) -> None:
    """A container that starts again has new nodes in the places of its old ones, which take a manager again."""
    pod, _ = world.node.phones
    before, held = _inodes(), natural_sort(pod.held())
    world.hold(pod, held[0])
    pod.restart_container()
    pod.view()
    after = _inodes()
    assert after.keys() == PROVISIONED, f"{len(after)} nodes"
    assert {name for name in after if after[name] != before[name]} == set(held)
    world.tries(pod, usable(held))


def kept(world: PodWorld) -> None:
    """A node that is deleted and a link that is deleted are made again, are Healthy, and work in a pod."""
    held = set().union(*(phone.held() for phone in world.node.phones))
    node, link = natural_sort(PROVISIONED - held)[:2]
    before = _inodes()[node]
    binderfs.remove_device(NODES, node)
    os.unlink(f"/dev/{link}")
    until(lambda: _inodes().get(node, before) != before and os.path.exists(f"/dev/{link}"), "both are there again")
    world.node.wait_allocatable(PROVISIONED)
    assert binderfs.binder_version(f"/dev/{node}") == binderfs.PROTOCOL_VERSION
    with world.node.running(container("main", 2)) as pod:
        assert pod.held() == {node, link}, f"{pod.held()} not {node} and {link}"
        world.tries(pod, usable(natural_sort(pod.held())))


def leaked(world: PodWorld) -> None:
    """A process of the host that holds a pod's node open is told by `aosp-plugin status`; and no process is unseen."""
    pod, _ = world.node.phones
    name = natural_sort(pod.held())[-1]
    with subprocess.Popen([world.probe, "keep", f"/dev/{name}", "wait"], stdout=subprocess.DEVNULL) as process:
        expected = [{"node": name, "pid": process.pid, "command": f"{world.probe} keep /dev/{name} wait"}]
        until(lambda: _leaks(_status(world)) == expected, f"{expected} is told")
        assert _status(world)["leaks_problem"] == "", _status(world)["leaks_problem"]
        process.kill()
    until(lambda: not _leaks(_status(world)), "its end is told")


def stays(world: PodWorld) -> None:
    """The plugin's pod ends: nodes and phones stay as they are, and the next pod takes the nodes as they are."""
    phones = world.node.phones
    held, before = natural_sort(phones[0].held())[0], _inodes()
    containers = [phone.container_id() for phone in phones]
    world.hold(phones[0], held)
    world.plugin.stop()
    assert _inodes() == before, "the nodes are not what they were"
    world.plugin.start()
    world.node.wait_allocatable(PROVISIONED)
    assert _inodes() == before, "the nodes are not what they were"
    assert [phone.container_id() for phone in phones] == containers, "the phones have restarted"
    assert world.is_held(phones[0], held), "its context manager is gone"


def mounted_anew(world: PodWorld) -> None:
    """The host unmounts the binderfs: that pod mounts another and fills it; once it is started again all is Healthy."""
    world.node.clear()
    binderfs.unmount(NODES)
    until(lambda: _inodes().keys() == PROVISIONED, "the host has the nodes again")
    until(lambda: _status(world)["counts"]["unhealthy"] == len(PROVISIONED), "all are told as replaced")
    assert {device["reason"] for device in _status(world)["devices"]} == {"replaced"}
    world.plugin.stop()
    world.plugin.start()
    world.node.wait_allocatable(PROVISIONED)
    with world.node.running(container("main", 2)) as pod:
        world.tries(pod, usable(natural_sort(pod.held())))


def ended(world: PodWorld) -> None:
    """It ends, and `nodes delete` on the host removes all that it made."""
    world.plugin.stop()
    world.node.wait_allocatable(set())
    hack("delete")
    left = [name for name in natural_sort(PROVISIONED) if os.path.lexists(f"/dev/{name}")]
    assert (left, binderfs.mount_at(NODES)) == ([], None), f"left: {left}, {binderfs.mount_at(NODES)}"


def _inodes() -> dict[str, tuple[int, int]]:
    """Return what tells each node of the host's binderfs from another in its place; nothing where it is not mounted."""
    if binderfs.mount_at(NODES) is None:
        return {}
    view = {name: os.stat(f"{NODES}/{name}") for name in binderfs.devices_in(NODES)}
    return {name: (one.st_ino, one.st_rdev) for name, one in view.items()}


def _status(world: PodWorld) -> dict[str, Any]:
    """Return what `aosp-plugin status` says in the pod of the one resource."""
    printed = world.node.runtime.execute(world.plugin.container_id(), "aosp-plugin", "status", "--json")
    report: dict[str, Any] = json.loads(printed)["resources"][0]
    return report


def _leaks(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{name: leak[name] for name in ("node", "pid", "command")} for leak in report["leaks"]]


ITEMS: Final[list[Item[PodWorld]]] = [
    *(item(makes), item(on_the_host), item(work), item(clean), item(kept), item(leaked)),
    *(item(stays), item(mounted_anew), item(ended)),
]
