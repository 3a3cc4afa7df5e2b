"""Items: pods keep their phones under a real kubelet and containerd with the systemd cgroup driver, kubeadm's default.

The plugin is the pod of deploy/privileged. The items without a link have a read-only /dev/char in place of the host's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import yaml

from tests.e2e.deploy.manifests import configurations, the
from tests.e2e.deploy.parts import DEPLOY
from tests.e2e.kernel import phones, systemd
from tests.e2e.kernel.item import Item, item, sentence
from tests.e2e.kernel.items_pods import WORK, PodWorld
from tests.e2e.kernel.items_systemd import CHANGES, LINKS, LOSING, PROGRAMS, linked, numbers
from tests.e2e.kernel.phones import NAMES, RESOURCE
from tests.e2e.kubelet import sandbox
from tests.e2e.kubelet.archive import busybox_image
from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.plugins import AsPod
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.standalone import Standalone
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.kubelet.placed import Placed

ALL: Final = set(phones.phones(4))


@dataclass
class SystemdWorld(PodWorld):
    """A node whose cgroups systemd makes."""

    runtime: Runtime


def start(probe: Path, kubelet_binary: Path, image: Path, kustomize: Path) -> SystemdWorld:
    """Start containerd and a kubelet, and load the images; the first item starts the plugin."""
    until(systemd.is_up, "systemd is up")
    sandbox.set_up(devices=False, own=[path for path in sandbox.OWN if path != "/run"])  # systemd's sockets are there
    WORK.mkdir()
    runtime = Runtime(WORK / "runtime", systemd=True)
    runtime.start()
    busybox_image(WORK / "busybox.tar", probe)
    runtime.load(WORK / "busybox.tar")
    runtime.load(image)
    kubelet = Standalone(kubelet_binary, WORK / "kubelet", runtime.socket, cgroupDriver="systemd", cgroupsPerQOS=True)
    kubelet.start()
    manifests = list(yaml.safe_load_all(run(str(kustomize), "build", str(DEPLOY / "privileged"))))
    plugin = AsPod(WORK, kubelet, runtime, the("DaemonSet", manifests))
    plugin.configure(configurations(manifests)[0].replace("count: 120", f"count: {len(ALL)}"))
    node = Node(kubelet, runtime, plugin, resource=RESOURCE, devices=ALL, each=1)
    return SystemdWorld(node, plugin, probe, runtime)


def linked_by_pod(world: SystemdWorld) -> None:
    """The pod of deploy/privileged links the binder devices of its phones on the host."""
    world.plugin.start()
    world.node.wait_allocatable(ALL)
    until(lambda: linked() == numbers(sorted(ALL)), "the phones are linked")


def kept(world: SystemdWorld, runtime: str) -> None:
    """A pod keeps its phone through daemon-reload, a change of its CPU shares by CRI, and set-property."""
    _try(world, runtime, "ok", "with links")


def unlinked(world: SystemdWorld) -> None:
    """Where /dev/char is read-only, the pod serves phones without links."""
    world.node.clear()
    world.plugin.stop()
    run("mount", "-t", "tmpfs", "-o", "ro", "links", str(LINKS))
    world.plugin.start()
    world.node.wait_allocatable(ALL)
    assert linked() == {}


def lost(world: SystemdWorld, runtime: str) -> None:
    """Counter-example: without links, a pod of Debian's runc loses its phone, and those of others keep it."""
    _try(world, runtime, "EPERM" if runtime in LOSING else "ok", "without links")


def ended(world: SystemdWorld) -> None:
    """When pods and plugin have ended, the host can unmount the phones."""
    world.node.clear()
    world.plugin.stop()
    phones.unmount_all()


def _try(world: SystemdWorld, runtime: str, outcome: str, links: str) -> None:
    """Run a container for each change, and check whether its phone opens before and after it."""
    world.node.clear()
    world.runtime.configure(PROGRAMS[runtime])
    world.runtime.restart()
    version = {**world.runtime.versions}.popitem()[1]
    pod, _ = world.node.phones
    for change in CHANGES:
        world.tries(pod, {f"open /dev/{name}": "ok" for name in NAMES})
        _change(world, change, pod)
        world.tries(pod, {f"open /dev/{name}": outcome for name in NAMES} | {"open /dev/null": "ok"})
        sys.stdout.write(f"containerd, {runtime} {version}, {change}, {links}: {outcome}\n")
        pod.restart_container()
        pod.view()


def _change(world: SystemdWorld, change: str, pod: Placed) -> None:
    container = pod.container_id()
    if change == "daemon-reload":
        run("systemctl", "daemon-reload")
    elif change == "update":
        world.runtime.set_cpu_shares(container)
    else:
        run("systemctl", "set-property", "--runtime", f"cri-containerd-{container}.scope", "CPUWeight=50")


def _for_each_runtime(function: Callable[[SystemdWorld, str], None]) -> list[Item[SystemdWorld]]:
    def check(runtime: str) -> Callable[[SystemdWorld], None]:
        return lambda world: function(world, runtime)

    return [Item(f"{runtime}: {sentence(function)}", check(runtime)) for runtime in PROGRAMS]


ITEMS: Final[list[Item[SystemdWorld]]] = [
    item(linked_by_pod),
    *_for_each_runtime(kept),
    item(unlinked),
    *_for_each_runtime(lost),
    item(ended),
]
