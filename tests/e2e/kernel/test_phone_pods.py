"""120 phones under a real kubelet on a real binderfs, with the pods of deploy/privileged and deploy/provision.

They follow those of ``test_pods`` in the same boot. The pod mounts each phone's binderfs in a volume whose mounts
propagate to the host: the plugin itself, or a container beside a plugin without privileges.
"""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import ClassVar, Final

import pytest

from tests.e2e.common.processes import run
from tests.e2e.common.waiting import until
from tests.e2e.kernel import phones
from tests.e2e.kernel.phones import path
from tests.e2e.kernel.pods import WORK, Host, PodWorld, deployed, phone_of
from tests.e2e.kernel.world import part
from tests.e2e.kubelet import rights
from tests.e2e.kubelet.node import Placed
from tests.e2e.kubelet.runtime import without_scheme

ALL: Final = set(phones.phones(120))


class Deployed:
    """What holds for each of the two deployments."""

    name: ClassVar[str]
    """The directory in deploy/."""

    @pytest.fixture(scope="class")
    def world(self, host: Host) -> Iterator[PodWorld]:
        """Run the plugin. When it ends, the phones stay mounted, and the host can unmount them."""
        world = deployed(host, self.name, ALL)
        yield world
        world.node.clear()
        world.plugin.stop()
        world.node.wait_allocatable(set())
        assert phones.mounted().keys() == ALL
        phones.unmount_all()

    def test_phones_mounted(self, world: PodWorld) -> None:
        """The pod mounts 120 phones, whole on the host, and advertises them; it is ready, and knows its limit."""
        phones.require_whole(ALL)
        until(lambda: world.plugin.status()["containerStatuses"][0]["ready"], "the pod is ready")
        with urllib.request.urlopen(f"http://{world.plugin.status()['podIP']}:9478/metrics") as answer:
            assert b"aosp_plugin_memory_limit_bytes 2.68435456e+08\n" in answer.read(), "not the manifest's limit"

    def test_phones_fresh(self, world: PodWorld) -> None:
        """A restarted container has a fresh binderfs with another user as manager; other phones keep theirs."""
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

    def test_phones_stay(self, world: PodWorld) -> None:
        """When the plugin's pod ends, phones and their pods stay, and its next pod finds the same mounts."""
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


class TestPrivileged(Deployed):
    """deploy/privileged."""

    name = "privileged"

    def test_phones_held(self, world: PodWorld) -> None:
        """`aosp-plugin holders` shows a process of the host that holds a device of a pod's phone, until it ends."""
        pod, _ = world.node.phones
        file = path(phone_of(pod), "hwbinder")
        words = ["probe", "keep", file, "wait"]
        with subprocess.Popen(words, executable=part("probe"), stdout=subprocess.DEVNULL) as process:
            row = re.compile(rf"^{phone_of(pod)}/hwbinder .* {process.pid} +{' '.join(words)}", re.MULTILINE)
            try:
                until(lambda: row.search(_holders()), f"{row.pattern} is shown")
            finally:
                process.kill()
        assert not row.search(_holders())


class TestProvision(Deployed):
    """deploy/provision."""

    name = "provision"

    def test_no_privileges(self, world: PodWorld) -> None:
        """The plugin that serves them has no capability, a seccomp filter, and no device of the host in its cgroup."""
        rights.assert_no_privileges(world.node)
        rights.assert_no_devices(world.node)

    def test_phones_apart(self, world: PodWorld) -> None:
        """Two pods have a phone each: each manages its own, lists no other, and can neither change nor leave it."""
        world.node.clear()  # with a fresh binderfs each, of which no user was manager
        for pod, neighbour in (world.node.phones, world.node.phones[::-1]):
            mine = phone_of(pod)
            world.tries(pod, phones.whole(mine) | phones.sealed())
            world.tries(pod, phones.fixed() | phones.others_closed(mine, phone_of(neighbour)))
        phones.require_whole(ALL)

    def test_phones_spoiled(self, world: PodWorld) -> None:
        """A device that a tenant with CAP_SYS_ADMIN removes returns; a phone that it froze is fresh to the next."""
        pod, neighbour = world.node.phones
        before, container = phones.mounted(), neighbour.container_id()
        os.unlink(path(phone_of(pod), "binder"))
        until(lambda: phones.is_whole(phone_of(pod)), "the phone is whole again")
        world.node.wait_allocatable(ALL)
        assert phones.mounted() == before
        subprocess.run([part("probe"), "freeze", path(phone_of(pod))], check=True, stdout=subprocess.DEVNULL)
        pod.restart_container()
        pod.view()
        assert phones.mounted()[phone_of(pod)] != before[phone_of(pod)]
        world.tries(pod, phones.whole(phone_of(pod)) | phones.sealed())
        world.node.wait_allocatable(ALL)
        phones.require_whole(ALL)
        assert neighbour.container_id() == container, "the other pod has restarted"

    def test_provisioner_killed(self, world: PodWorld) -> None:
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

    def test_phones_kept(self, world: PodWorld) -> None:
        """A container restarts after the kubelet, without the plugin: its pod keeps the phone, fresh at its start."""
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


def _managed_by_root(world: PodWorld, pod: Placed) -> None:
    """Let root be the manager of a pod's phone for a moment: the driver refuses other users from then on."""
    world.tries(pod, {"manage /dev/binder": "ok"})
    world.tries(pod, {"become 1000": "ok", "manage /dev/binder": "EPERM"})


def _holders() -> str:
    configuration = WORK / TestPrivileged.name / "plugin-config/config.yaml"
    return run(sys.executable, "-m", "aosp_plugin", "holders", "--config", str(configuration))


def _provisioner(world: PodWorld) -> str:
    """Return the ID of the running container with the privileges."""
    (container,) = (each for each in world.plugin.status()["containerStatuses"] if each["name"] == "provisioner")
    identifier: str = container["containerID"]
    return without_scheme(identifier)
