"""Pods keep their phones under a real kubelet and containerd with the systemd cgroup driver, kubeadm's default.

The plugin is the pod of deploy/privileged. The tests without a link have a read-only /dev/char in place of the host's.
"""

import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.common.processes import run
from tests.e2e.common.waiting import until
from tests.e2e.kernel import phones, pods, systemd
from tests.e2e.kernel.phones import NAMES
from tests.e2e.kernel.pods import Host, PodWorld
from tests.e2e.kernel.systemd import CHANGES, LINKS, LOSING, linked, numbers
from tests.e2e.kubelet.node import Placed
from tests.e2e.kubelet.runtime import Runtime

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


@pytest.mark.usefixtures("world")
def test_linked_by_pod() -> None:
    """The pod of deploy/privileged links the binder devices of its phones on the host."""
    until(lambda: linked() == numbers(sorted(ALL)), "the phones are linked")


def test_kept(world: PodWorld, host: Host, runtime: str) -> None:
    """A pod keeps its phone through daemon-reload, a change of its CPU shares by CRI, and set-property."""
    _try(world, host.runtime, runtime, "ok", "with links")


@pytest.mark.usefixtures("no_links")
def test_unlinked() -> None:
    """Where /dev/char is read-only, the pod serves phones without links."""
    assert linked() == {}


@pytest.mark.usefixtures("no_links")
def test_lost(world: PodWorld, host: Host, runtime: str) -> None:
    """Counter-example: without links, a pod of Debian's runc loses its phone, and those of others keep it."""
    _try(world, host.runtime, runtime, "EPERM" if runtime == LOSING else "ok", "without links")


def _try(world: PodWorld, runtime: Runtime, program: str, outcome: str, links: str) -> None:
    """Run a container for each change, and check whether its phone opens before and after it."""
    world.node.clear()
    runtime.configure(systemd.program(program))
    runtime.restart()
    version = {**runtime.versions}.popitem()[1]
    pod, _ = world.node.phones
    for change in CHANGES:
        world.tries(pod, {f"open /dev/{name}": "ok" for name in NAMES})
        _change(runtime, change, pod)
        world.tries(pod, {f"open /dev/{name}": outcome for name in NAMES} | {"open /dev/null": "ok"})
        sys.stdout.write(f"containerd, {program} {version}, {change}, {links}: {outcome}\n")
        pod.restart_container()
        pod.view()


def _change(runtime: Runtime, change: str, pod: Placed) -> None:
    container = pod.container_id()
    if change == "daemon-reload":
        run("systemctl", "daemon-reload")
    elif change == "update":
        runtime.set_cpu_shares(container)
    else:
        run("systemctl", "set-property", "--runtime", f"cri-containerd-{container}.scope", "CPUWeight=50")
