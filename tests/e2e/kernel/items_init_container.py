"""Items: the pod of deploy/provision: an init container mounts 120 phones, and a plugin without privileges serves them.

These items follow those of ``items_phone_pods`` in the same boot, after their phones have been unmounted.
"""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.deploy.manifests import configuration, the
from tests.e2e.deploy.parts import DEPLOY, run
from tests.e2e.kernel import items_phone_pods, phones
from tests.e2e.kernel.item import Item, item
from tests.e2e.kernel.items_phone_pods import ALL, phone_of
from tests.e2e.kernel.items_pods import PodWorld
from tests.e2e.kernel.items_provision import status
from tests.e2e.kernel.phones import RESOURCE, path
from tests.e2e.kubelet import items_daemonset
from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.plugins import AsPod
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

REASON: Final = "not-provisioned"


def start(before: PodWorld, kustomize: Path, directory: Path) -> PodWorld:
    """Return the same node with the plugin as deploy/provision configures it, which is not started yet."""
    manifests = list(yaml.safe_load_all(run(str(kustomize), "build", str(DEPLOY / "provision"))))
    directory.mkdir()
    plugin = AsPod(directory, before.node.kubelet, before.node.runtime, the("DaemonSet", manifests))
    plugin.configure(configuration(manifests))
    node = Node(before.node.kubelet, before.node.runtime, plugin, resource=RESOURCE, devices=ALL, each=1)
    return PodWorld(node, plugin, before.probe)


def init_mounted(world: PodWorld) -> None:
    """The init container of deploy/provision mounts 120 phones, which are whole on the host, and ends with 0."""
    _start(world)
    phones.require_whole(ALL)
    until(lambda: world.plugin.status()["containerStatuses"][0]["ready"], "the pod is ready")


def init_no_privileges(world: PodWorld) -> None:
    """The plugin that serves them has no capability, a seccomp filter, and no device of the host in its cgroup."""
    items_daemonset.no_privileges(world.node)
    items_daemonset.no_devices(world.node)


def init_apart(world: PodWorld) -> None:
    """Two pods have a phone each: each is manager of its own, lists no other, and can neither change nor leave it."""
    items_phone_pods.phones_apart(world)


def init_kept(world: PodWorld) -> None:
    """A restarted container has the same binderfs, whose three devices it manages again; other phones run on."""
    pod, neighbour = world.node.phones
    before = phones.mounted()
    world.tries(pod, phones.managed_by(0))
    world.hold(neighbour, "binder")
    pod.restart_container()
    pod.view()
    assert phones.mounted() == before, "mounts have changed"
    world.tries(pod, phones.managed_by(0))
    assert world.is_held(neighbour, "binder"), "the other pod's manager has ended"


def init_restarts(world: PodWorld) -> None:
    """The plugin is killed, and its pod replaced by another: phones and their pods stay, and none is mounted again."""
    pods = world.node.phones
    before, containers = phones.mounted(), [pod.container_id() for pod in pods]
    first = world.plugin.container_id()
    world.plugin.interrupt(signal.SIGKILL)
    until(lambda: world.plugin.container_id() != first, "the kubelet has restarted the container")
    world.node.wait_allocatable(ALL)
    assert phones.mounted() == before
    world.plugin.stop()
    assert phones.mounted() == before
    _start(world)
    assert phones.mounted() == before
    assert [pod.container_id() for pod in pods] == containers, "the pods have restarted"
    assert world.is_held(pods[1], "binder"), "its context manager is gone"


def init_lost(world: PodWorld) -> None:
    """The host unmounts a phone: not-provisioned with the remedy, nothing else changes; the remedy brings it back."""
    free = max(ALL - {phone_of(pod) for pod in world.node.phones})
    subprocess.run(["umount", "--lazy", path(free)], check=True)
    world.node.wait_allocatable(ALL - {free})
    found = {device["id"]: device["reason"] for device in status(world)["devices"] if device["reason"]}
    assert found == {free: REASON}, found
    assert "restart the plugin's pod" in json.dumps(status(world)), status(world)
    assert world.plugin.status()["containerStatuses"][0]["ready"], "the plugin is not ready"
    assert free not in phones.mounted(), "the plugin has mounted it"
    before = phones.mounted()
    world.plugin.stop()
    _start(world)
    phones.require_whole(ALL)
    assert before.items() < phones.mounted().items(), "other phones have changed"


def init_ended(world: PodWorld) -> None:
    """When the plugin ends, the phones stay mounted, and the host can unmount them."""
    items_phone_pods.phones_ended(world)


def _start(world: PodWorld) -> None:
    """Start the plugin's pod, and wait until its init container has ended with 0 and the phones are allocatable."""
    world.plugin.start()
    ended = until(lambda: _ended(world), "the init container has ended", seconds=2 * PATIENCE)
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed"), f"{ended}: {world.plugin.tail()}"
    world.node.wait_allocatable(ALL)


def _ended(world: PodWorld) -> dict[str, Any]:
    """Return the end of the init container; empty while it runs."""
    (found,) = world.plugin.status()["initContainerStatuses"]
    return dict(found["state"].get("terminated", {}))


ITEMS: Final[list[Item[PodWorld]]] = [
    *(item(init_mounted), item(init_no_privileges), item(init_apart), item(init_kept), item(init_restarts)),
    *(item(init_lost), item(init_ended)),
]
