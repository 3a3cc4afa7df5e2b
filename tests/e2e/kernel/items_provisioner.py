"""Items: the pod of deploy/provision: a plugin without privileges, and a container that mounts 120 phones on request.

These items follow those of ``items_phone_pods`` in the same boot, after their phones have been unmounted.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

import yaml

from tests.e2e.deploy.manifests import configuration, the
from tests.e2e.deploy.parts import DEPLOY, run
from tests.e2e.kernel import items_phone_pods, phones
from tests.e2e.kernel.item import Item, item
from tests.e2e.kernel.items_phone_pods import ALL, phone_of
from tests.e2e.kernel.items_pods import PodWorld
from tests.e2e.kernel.phones import RESOURCE, path
from tests.e2e.kubelet import items_daemonset
from tests.e2e.kubelet.container_runtime import without_scheme
from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.plugins import AsPod
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


def start(before: PodWorld, kustomize: Path, directory: Path) -> PodWorld:
    """Return the same node with the plugin as deploy/provision configures it, which is not started yet."""
    manifests = list(yaml.safe_load_all(run(str(kustomize), "build", str(DEPLOY / "provision"))))
    directory.mkdir()
    plugin = AsPod(directory, before.node.kubelet, before.node.runtime, the("DaemonSet", manifests))
    plugin.configure(configuration(manifests))
    node = Node(before.node.kubelet, before.node.runtime, plugin, resource=RESOURCE, devices=ALL, each=1)
    return PodWorld(node, plugin, before.probe)


def requested_mounted(world: PodWorld) -> None:
    """The pod of deploy/provision mounts 120 phones, which are whole on the host, and advertises them; it is ready."""
    items_phone_pods.phones_mounted(world)


def requested_no_privileges(world: PodWorld) -> None:
    """The plugin that serves them has no capability, a seccomp filter, and no device of the host in its cgroup."""
    items_daemonset.no_privileges(world.node)
    items_daemonset.no_devices(world.node)


def requested_apart(world: PodWorld) -> None:
    """Two pods have a phone each: each is manager of its own, lists no other, and can neither change nor leave it."""
    items_phone_pods.phones_apart(world)


def requested_fresh(world: PodWorld) -> None:
    """A restarted container has a fresh binderfs, in which another user becomes manager; other phones keep theirs."""
    items_phone_pods.phones_fresh(world)


def requested_spoiled(world: PodWorld) -> None:
    """A device that a tenant with CAP_SYS_ADMIN removes is restored; a phone that it freezes is fresh for the next."""
    pod, neighbour = world.node.phones
    before, container = phones.mounted(), neighbour.container_id()
    os.unlink(path(phone_of(pod), "binder"))
    until(lambda: phones.is_whole(phone_of(pod)), "the phone is whole again")
    world.node.wait_allocatable(ALL)
    assert phones.mounted() == before
    subprocess.run([world.probe, "freeze", path(phone_of(pod))], check=True, stdout=subprocess.DEVNULL)
    pod.restart_container()
    pod.view()
    assert phones.mounted()[phone_of(pod)] != before[phone_of(pod)]
    world.tries(pod, phones.whole(phone_of(pod)) | phones.sealed())
    world.node.wait_allocatable(ALL)
    phones.require_whole(ALL)
    assert neighbour.container_id() == container, "the other pod has restarted"


def requested_restarts(world: PodWorld) -> None:
    """The plugin is killed, and its pod replaced by another: phones and their pods stay, and none is mounted again."""
    before = phones.mounted()
    first = world.plugin.container_id()
    world.plugin.interrupt(signal.SIGKILL)
    until(lambda: world.plugin.container_id() != first, "the kubelet has restarted the container")
    world.node.wait_allocatable(ALL)
    assert phones.mounted() == before
    items_phone_pods.phones_stay(world)


def requested_killed(world: PodWorld) -> None:
    """The provisioner is killed: devices stay allocatable, and a container that starts gets a fresh binderfs."""
    pod, _ = world.node.phones
    plugin, first = world.plugin.container_id(), _provisioner(world)
    world.tries(pod, {"become 1000": "ok", "manage /dev/binder": "EPERM"})  # it remembers root
    world.node.runtime.signal(first, signal.SIGKILL)
    pod.restart_container()
    pod.view()
    world.tries(pod, phones.managed_by(1000))
    until(lambda: _provisioner(world) != first, "the kubelet has restarted the container")
    world.node.wait_allocatable(ALL)
    assert world.plugin.container_id() == plugin, "the plugin has restarted"


def requested_unmounted(world: PodWorld) -> None:
    """The host unmounts a phone in use and a free one: both are mounted again and healthy, and the pod runs on."""
    items_phone_pods.phones_unmounted(world)


def requested_covered(world: PodWorld) -> None:
    """The host mounts a tmpfs over a phone: foreign-mount, and not allocatable; unmounted again: healthy."""
    items_phone_pods.phones_covered(world)


def requested_ended(world: PodWorld) -> None:
    """When the plugin ends, the phones stay mounted, and the host can unmount them."""
    items_phone_pods.phones_ended(world)


def _provisioner(world: PodWorld) -> str:
    """Return the ID of the running container with the privileges."""
    (container,) = (each for each in world.plugin.status()["containerStatuses"] if each["name"] == "provisioner")
    identifier: str = container["containerID"]
    return without_scheme(identifier)


ITEMS: Final[list[Item[PodWorld]]] = [
    *(item(requested_mounted), item(requested_no_privileges), item(requested_apart), item(requested_fresh)),
    *(item(requested_spoiled), item(requested_restarts), item(requested_killed), item(requested_unmounted)),
    *(item(requested_covered), item(requested_ended)),
]
