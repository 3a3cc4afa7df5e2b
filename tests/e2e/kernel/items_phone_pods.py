"""Items: 120 phones under a real kubelet on a real binderfs, with the pods of deploy/privileged and deploy/provision.

They follow those of ``items_pods`` in the same boot. The pod mounts each phone's binderfs in a volume whose mounts
propagate to the host: the plugin itself, or a container beside a plugin without privileges.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.deploy.manifests import configurations, the
from tests.e2e.deploy.parts import DEPLOY, run
from tests.e2e.kernel import phones
from tests.e2e.kernel.item import Item, item, sentence
from tests.e2e.kernel.items_pods import WORK, PodWorld
from tests.e2e.kernel.phones import RESOURCE, path
from tests.e2e.kubelet import renaming, rights
from tests.e2e.kubelet.container_runtime import without_scheme
from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.plugins import AsPod, AsProcess
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.kubelet.node import Placed

ALL: Final = set(phones.phones(120))
PRIVILEGED, PROVISION = "privileged", "provision"


def start(before: PodWorld, kustomize: Path, name: str) -> PodWorld:
    """Return the same node with the plugin as deploy/NAME configures it, which is not started yet."""
    manifests = list(yaml.safe_load_all(run(str(kustomize), "build", str(DEPLOY / name))))
    directory = WORK / name
    directory.mkdir()
    plugin = AsPod(directory, before.node.kubelet, before.node.runtime, the("DaemonSet", manifests))
    plugin.configure(configurations(manifests)[0])
    node = Node(before.node.kubelet, before.node.runtime, plugin, resource=RESOURCE, devices=ALL, each=1)
    return PodWorld(node, plugin, before.probe)


def phones_mounted(world: PodWorld) -> None:
    """The pod mounts 120 phones, which are whole on the host, and advertises them; it is ready, and knows its limit."""
    world.plugin.start()
    world.node.wait_allocatable(ALL)
    phones.require_whole(ALL)
    until(lambda: world.plugin.status()["containerStatuses"][0]["ready"], "the pod is ready")
    with urllib.request.urlopen(f"http://{world.plugin.status()['podIP']}:9478/metrics") as answer:
        assert b"aosp_plugin_memory_limit_bytes 2.68435456e+08\n" in answer.read(), "another limit than the manifest's"


def no_privileges(world: PodWorld) -> None:
    """The plugin that serves them has no capability, a seccomp filter, and no device of the host in its cgroup."""
    rights.assert_no_privileges(world.node)
    rights.assert_no_devices(world.node)


def phones_apart(world: PodWorld) -> None:
    """Two pods have a phone each: each is manager of its own, lists no other, and can neither change nor leave it."""
    for pod, neighbour in (world.node.phones, world.node.phones[::-1]):
        mine = phone_of(pod)
        world.tries(pod, phones.whole(mine) | phones.sealed())
        world.tries(pod, phones.fixed() | phones.others_closed(mine, phone_of(neighbour)))
    phones.require_whole(ALL)


def phones_held(world: PodWorld) -> None:
    """`aosp-plugin holders` shows a process of the host that holds a device of a pod's phone, until it ends."""
    pod, _ = world.node.phones
    file = path(phone_of(pod), "hwbinder")
    words = ["probe", "keep", file, "wait"]
    with subprocess.Popen(words, executable=world.probe, stdout=subprocess.DEVNULL) as process:
        row = re.compile(rf"^{phone_of(pod)}/hwbinder .* {process.pid} +{' '.join(words)}", re.MULTILINE)
        try:
            until(lambda: row.search(_holders()), f"{row.pattern} is shown")
        finally:
            process.kill()
    assert not row.search(_holders())


def phones_fresh(world: PodWorld) -> None:
    """A restarted container has a fresh binderfs, in which another user becomes manager; other phones keep theirs."""
    pod, neighbour = world.node.phones
    before = phones.mounted()
    _managed_by_root(world, pod)
    world.hold(neighbour, "binder")
    pod.restart_container()
    pod.view()
    after = phones.mounted()
    assert {phone for phone in ALL if after[phone] != before[phone]} == {phone_of(pod)}
    world.tries(pod, phones.managed_by(1000))
    assert world.is_held(neighbour, "binder"), "the other pod's manager has ended"
    world.node.wait_allocatable(ALL)
    assert world.node.health(pod) in ({}, {phone_of(pod): "Healthy"}), world.node.health(pod)


def phones_stay(world: PodWorld) -> None:
    """When the plugin's pod ends, phones and their pods stay, and the next pod of the plugin finds the same mounts."""
    pods = world.node.phones
    before, containers = phones.mounted(), [pod.container_id() for pod in pods]
    world.hold(pods[1], "vndbinder")
    world.plugin.stop()
    assert phones.mounted() == before
    world.plugin.start()
    world.node.wait_allocatable(ALL)
    assert phones.mounted() == before
    assert [pod.container_id() for pod in pods] == containers, "the pods have restarted"
    assert world.is_held(pods[1], "vndbinder"), "its context manager is gone"


def phones_kept(world: PodWorld) -> None:
    """A container restarts after the kubelet, without the plugin: its pod keeps the phone, fresh since it has it."""
    world.node.clear()  # restarted containers may not survive a restart of the kubelet
    pod, _ = world.node.phones
    phone = phone_of(pod)
    _managed_by_root(world, pod)
    world.hold(pod, "hwbinder")
    world.node.retire(pod)
    pod, neighbour = world.node.phones
    assert phone_of(pod) == phone
    before, container = phones.mounted(), neighbour.container_id()
    world.plugin.stop()
    world.node.kubelet.stop()
    world.node.kubelet.start()
    pod.wait_phase("Running")
    pod.restart_container()
    pod.view()
    world.tries(pod, phones.managed_by(1000))
    assert phones.mounted() == before
    assert neighbour.container_id() == container, "the other pod has restarted"
    world.plugin.start()
    world.node.wait_allocatable(ALL)
    world.node.clear()


def phones_spoiled(world: PodWorld) -> None:
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


def provisioner_killed(world: PodWorld) -> None:
    """The provisioner is killed: devices stay allocatable, and a container that starts gets a fresh binderfs."""
    pod, _ = world.node.phones
    plugin, first = world.plugin.container_id(), _provisioner(world)
    _managed_by_root(world, pod)
    world.node.runtime.signal(first, signal.SIGKILL)
    pod.restart_container()
    pod.view()
    world.tries(pod, phones.managed_by(1000))
    until(lambda: _provisioner(world) != first, "the kubelet has restarted the container")
    world.node.wait_allocatable(ALL)
    assert world.plugin.container_id() == plugin, "the plugin has restarted"


def phones_ended(world: PodWorld) -> None:
    """When the plugin ends, the phones stay mounted, and the host can unmount them."""
    world.node.clear()
    world.plugin.stop()
    world.node.wait_allocatable(set())
    assert phones.mounted().keys() == ALL
    phones.unmount_all()


def phones_renamed(world: PodWorld) -> None:
    """The resource is renamed and the kubelet restarts: an old pod's container starts again on its own binderfs."""
    wanted = phones.phones(3)
    text = f"version: v1\nresource_name: {RESOURCE}\nphones: {{count: {len(wanted)}}}\n"
    plugin = AsProcess(WORK / "renamed", text)
    node = Node(world.node.kubelet, world.node.runtime, plugin, resource=RESOURCE, devices=set(wanted), each=1)
    plugin.start()
    node.wait_allocatable(node.devices)
    with renaming.renamed_before_restart(node) as (old, new):
        world.hold(new, "binder")
        renaming.restart_container(old, new)
        world.tries(old, {"manage /dev/binder": "ok"})
        assert world.is_held(new, "binder"), "the other pod's manager has ended"
    node.tear_down()
    phones.unmount_all()


def phone_of(pod: Placed) -> str:
    """Return the phone of a pod's container."""
    (phone,) = pod.held()
    return phone


def _managed_by_root(world: PodWorld, pod: Placed) -> None:
    """Let root be the manager of a pod's phone for a moment: the driver refuses other users from then on."""
    world.tries(pod, {"manage /dev/binder": "ok"})
    world.tries(pod, {"become 1000": "ok", "manage /dev/binder": "EPERM"})


def _status(world: PodWorld) -> dict[str, Any]:
    """Return what `aosp-plugin status` in the pod reports about its resource."""
    printed = world.node.runtime.execute(world.plugin.container_id(), "aosp-plugin", "status", "--json")
    report: dict[str, Any] = json.loads(printed)["resources"][0]
    return report


def _holders() -> str:
    return run(
        sys.executable, "-m", "aosp_plugin", "holders", "--config", str(WORK / PRIVILEGED / "plugin-config/config.yaml")
    )


def _provisioner(world: PodWorld) -> str:
    """Return the ID of the running container with the privileges."""
    (container,) = (each for each in world.plugin.status()["containerStatuses"] if each["name"] == "provisioner")
    identifier: str = container["containerID"]
    return without_scheme(identifier)


_FUNCTIONS: Final = {
    PRIVILEGED: (phones_mounted, phones_held, phones_fresh, phones_stay, phones_ended),
    PROVISION: (
        *(phones_mounted, no_privileges, phones_apart, phones_fresh, phones_spoiled, phones_stay),
        *(provisioner_killed, phones_kept, phones_ended),
    ),
}
ITEMS: Final[dict[str, list[Item[PodWorld]]]] = {
    name: [Item(f"deploy/{name}: {sentence(function)}", function) for function in functions]
    for name, functions in _FUNCTIONS.items()
}
"""By the directory in deploy/."""

RENAMED: Final[Item[PodWorld]] = item(phones_renamed)
"""With the plugin as a process of the host: no pod but static ones runs here, which a plugin does not believe."""
