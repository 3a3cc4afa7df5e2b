"""Pods keep their phones under a real kubelet and runtime with the systemd cgroup driver, kubeadm's default.

The plugin is the pod of deploy/privileged. The tests without a link have a read-only /dev/char in place of the host's.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.common.processes import run
from tests.e2e.common.waiting import until
from tests.e2e.kernel import phones, pods
from tests.e2e.kernel.phones import NAMES
from tests.e2e.kernel.pods import Host, PodWorld
from tests.e2e.kernel.systemd import CHANGES, LINKS, LOSING, linked, numbers
from tests.e2e.kubelet.crio import ContainerRuntime

ALL: Final = set(phones.phones(4))


@pytest.fixture(scope="module")
def world(host: Host) -> Iterator[PodWorld]:
    """Serve phones by the pod of deploy/privileged. When pods and plugin have ended, the host can unmount them."""
    world = pods.deployed(host, "privileged", ALL)
    yield world
    world.node.clear()
    world.plugin.stop()
    phones.unmount_all()


@pytest.fixture(scope="module")
def no_links(world: PodWorld) -> None:
    """Serve them where /dev/char is read-only."""
    world.node.clear()
    world.plugin.stop()
    run("mount", "-t", "tmpfs", "-o", "ro", "links", str(LINKS))
    world.plugin.start()
    world.node.wait_allocatable(ALL)


@pytest.fixture(scope="module")
def loses(host: Host) -> bool:
    """Return whether the OCI runtime is one of those that lose devices without a link."""
    return host.runtime.versions.get("runc", "").partition("+")[0] in LOSING


def test_linked_by_pod(world: PodWorld) -> None:
    """The pod of deploy/privileged links the binder devices of its phones on the host, and its status has no notice."""
    until(lambda: linked() == numbers(sorted(ALL)), "the phones are linked")
    until(lambda: not _warned(world), "the status says nothing about links")


@pytest.mark.parametrize("change", CHANGES)
def test_kept(world: PodWorld, change: str) -> None:
    """A pod keeps its phone through daemon-reload, a change of its CPU shares by CRI, and set-property."""
    _try(world, change, "ok")


@pytest.mark.usefixtures("no_links")
def test_unlinked(world: PodWorld) -> None:
    """Where /dev/char is read-only, the pod serves phones without links, and its status names what is missing."""
    assert linked() == {}
    assert _warned(world)


@pytest.mark.usefixtures("no_links")
@pytest.mark.parametrize("change", CHANGES)
def test_lost(world: PodWorld, loses: bool, change: str) -> None:  # noqa: FBT001 - a fixture
    """Without links, a pod of runc 1.1.3 to 1.1.6 loses its phone, and those of others keep it."""
    _try(world, change, "EPERM" if loses else "ok")


def _try(world: PodWorld, change: str, outcome: str) -> None:
    """Check whether a pod's phone opens before and after the change, and restart its container."""
    pod, _ = world.node.phones
    world.tries(pod, {f"open /dev/{name}": "ok" for name in NAMES})
    _change(world.node.runtime, change, pod.container_id())
    world.tries(pod, {f"open /dev/{name}": outcome for name in NAMES} | {"open /dev/null": "ok"})
    pod.restart_container()
    pod.view()


def _change(runtime: ContainerRuntime, change: str, container: str) -> None:
    if change == "daemon-reload":
        run("systemctl", "daemon-reload")
    elif change == "update":
        runtime.set_cpu_shares(container)
    else:
        run("systemctl", "set-property", "--runtime", f"{runtime.scopes}-{container}.scope", "CPUWeight=50")


def _warned(world: PodWorld) -> bool:
    """Return whether the plugin's status names devices without a link."""
    printed = world.node.runtime.execute(world.plugin.container_id(), "aosp-plugin", "status")
    return "have no link in /dev/char" in printed
