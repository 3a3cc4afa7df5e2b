"""The pod of deploy/privileged on a real binderfs: it provisions binder devices on the host and detects leaked ones.

These items follow those of ``items_pods`` in the same boot, after their plugin has ended. The pod is what kustomize
renders from ``deploy/privileged``, with the rights that it has there, and with a configuration that provisions devices.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from typing import TYPE_CHECKING, Any, Final

import yaml

from aosp_plugin.binder.driver import binderfs
from tests.e2e.deploy.manifests import the
from tests.e2e.deploy.parts import DEPLOY, run
from tests.e2e.kernel.item import Item, item
from tests.e2e.kernel.items_pods import PodWorld
from tests.e2e.kernel.operations import others_closed, usable
from tests.e2e.kernel.world import PROVISIONED
from tests.e2e.kubelet.node import Node, names, natural_sort
from tests.e2e.kubelet.plugins import AsPod
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEVICES: Final = names(*range(360))
CONFIGURATION: Final = f"""\
version: v1
log_format: json
provision: {{count: {len(DEVICES)}, max: 4096}}
recreate: on-start
verify: probe
leak_scan_interval: 5
"""


def start(before: PodWorld, kustomize: Path, directory: Path) -> PodWorld:
    """Return the same node with the other plugin, which is not started yet."""
    manifests = list(yaml.safe_load_all(run(str(kustomize), "build", str(DEPLOY / "privileged"))))
    directory.mkdir()
    plugin = AsPod(directory, before.node.kubelet, before.node.runtime, the("DaemonSet", manifests))
    plugin.configure(CONFIGURATION)
    return PodWorld(Node(before.node.kubelet, before.node.runtime, plugin, devices=DEVICES), plugin, before.probe)


def provisions(world: PodWorld) -> None:
    """On a host without binder devices, the pod of deploy/privileged creates 360 and advertises them; it is ready."""
    world.plugin.start()
    world.node.wait_allocatable(DEVICES)
    until(lambda: world.plugin.status()["containerStatuses"][0]["ready"], "the pod is ready")


def on_the_host(_world: PodWorld) -> None:
    """The binderfs is mounted on the host, with room for 4096 devices; they have mode 0666, and /dev has no links."""
    mounted = binderfs.mount_at(PROVISIONED)
    assert mounted is not None, "the host has no binderfs there"
    assert mounted.max_devices == 4096, f"{mounted}"
    assert _inodes().keys() == DEVICES, f"{len(_inodes())} devices"
    modes = {stat.S_IMODE(os.lstat(f"{PROVISIONED}/{name}").st_mode) for name in DEVICES}
    assert modes == {0o666}, modes
    links = [name for name in natural_sort(DEVICES) if os.path.lexists(f"/dev/{name}")]
    assert not links, links


def work(world: PodWorld) -> None:
    """Two pods with 3 devices each: each device opens, answers 8 and accepts a manager; the other pod's do not open."""
    first, second = world.node.phones
    for pod, neighbour in ((first, second), (second, first)):
        world.tries(pod, usable(natural_sort(pod.held())))
        world.tries(pod, others_closed(natural_sort(pod.held())[0], natural_sort(neighbour.held())[0]))


def clean(world: PodWorld) -> None:
    """A container that restarts has fresh devices under the same names, which accept a manager again."""
    pod, _ = world.node.phones
    before, held = _inodes(), natural_sort(pod.held())
    world.hold(pod, held[0])
    pod.restart_container()
    pod.view()
    after = _inodes()
    assert after.keys() == DEVICES, f"{len(after)} devices"
    assert {name for name in after if after[name] != before[name]} == set(held)
    world.tries(pod, usable(held))


def restored(world: PodWorld) -> None:
    """A removed binder device and a changed mode are restored, are Healthy, and work in a pod."""
    held = set().union(*(phone.held() for phone in world.node.phones))
    removed, changed = natural_sort(DEVICES - held)[:2]
    before = _inodes()[removed]
    binderfs.remove_device(PROVISIONED, removed)
    os.chmod(f"{PROVISIONED}/{changed}", 0)
    until(lambda: _inodes().get(removed, before) != before, "the device is created again")
    until(lambda: stat.S_IMODE(os.lstat(f"{PROVISIONED}/{changed}").st_mode) == 0o666, "the mode is restored")
    world.node.wait_allocatable(DEVICES)
    assert binderfs.binder_version(f"{PROVISIONED}/{removed}") == binderfs.PROTOCOL_VERSION
    with world.node.running(container("main", 2)) as pod:
        assert pod.held() == {removed, changed}, f"{pod.held()} not {removed} and {changed}"
        world.tries(pod, usable(natural_sort(pod.held())))


def leaked(world: PodWorld) -> None:
    """`aosp-plugin status` reports a process of the host that holds a pod's device, and no process is unreadable."""
    pod, _ = world.node.phones
    name = natural_sort(pod.held())[-1]
    path = f"{PROVISIONED}/{name}"
    with subprocess.Popen([world.probe, "keep", path, "wait"], stdout=subprocess.DEVNULL) as process:
        try:
            expected = [{"binder_device": name, "pid": process.pid, "command": f"{world.probe} keep {path} wait"}]
            until(lambda: leaks(status(world)) == expected, f"{expected} is reported")
            assert status(world)["leaks_problem"] == "", status(world)["leaks_problem"]
        finally:
            process.kill()
    until(lambda: not leaks(status(world)), "the leak is no longer reported")


def stays(world: PodWorld) -> None:
    """When the plugin's pod ends, devices and phones stay, and the next pod of the plugin keeps the devices."""
    phones = world.node.phones
    held, before = natural_sort(phones[0].held())[0], _inodes()
    containers = [phone.container_id() for phone in phones]
    world.hold(phones[0], held)
    world.plugin.stop()
    assert _inodes() == before, "the devices have changed"
    world.plugin.start()
    world.node.wait_allocatable(DEVICES)
    assert _inodes() == before, "the devices have changed"
    assert [phone.container_id() for phone in phones] == containers, "the phones have restarted"
    assert world.is_held(phones[0], held), "its context manager is gone"


def unmounted(world: PodWorld) -> None:
    """If the host unmounts the binderfs, the pod mounts another and fills it; after a restart, all are Healthy."""
    world.node.clear()
    binderfs.unmount(PROVISIONED)
    until(lambda: _inodes().keys() == DEVICES, "the host has the devices again")
    until(lambda: status(world)["counts"]["unhealthy"] == len(DEVICES), "all are reported as replaced")
    assert {device["reason"] for device in status(world)["devices"]} == {"replaced"}
    world.plugin.stop()
    world.plugin.start()
    world.node.wait_allocatable(DEVICES)
    with world.node.running(container("main", 2)) as pod:
        world.tries(pod, usable(natural_sort(pod.held())))


def ended(world: PodWorld) -> None:
    """When the plugin ends, the binderfs stays mounted, and the host can unmount it."""
    world.plugin.stop()
    world.node.wait_allocatable(set())
    assert _inodes().keys() == DEVICES, f"{len(_inodes())} devices"
    binderfs.unmount(PROVISIONED)


def _inodes() -> dict[str, tuple[int, int]]:
    """Return what distinguishes each device of the host's binderfs from its replacement; empty if not mounted."""
    if binderfs.mount_at(PROVISIONED) is None:
        return {}
    status = {name: os.stat(f"{PROVISIONED}/{name}") for name in binderfs.device_names(PROVISIONED)}
    return {name: (device.st_ino, device.st_rdev) for name, device in status.items()}


def status(world: PodWorld) -> dict[str, Any]:
    """Return what `aosp-plugin status` in the pod reports about its resource."""
    printed = world.node.runtime.execute(world.plugin.container_id(), "aosp-plugin", "status", "--json")
    report: dict[str, Any] = json.loads(printed)["resources"][0]
    return report


def leaks(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{name: leak[name] for name in ("binder_device", "pid", "command")} for leak in report["leaks"]]


ITEMS: Final[list[Item[PodWorld]]] = [
    *(item(provisions), item(on_the_host), item(work), item(clean), item(restored), item(leaked)),
    *(item(stays), item(unmounted), item(ended)),
]
