"""Pods with ``hostUsers: false`` on a real binderfs, with a real kubelet and a runtime that supports them.

The boot has a kernel whose tmpfs can be ID-mapped (6.3 or newer), because the kubelet has its own files there.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final

import pytest

from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.common.waiting import until
from tests.e2e.kernel import phones, pods
from tests.e2e.kernel.operations import SHARED, usable
from tests.e2e.kernel.phones import MANAGED, NAMES, path
from tests.e2e.kernel.pods import Host, PodWorld, phone_of
from tests.e2e.kubelet.node import Placed, device_tool
from tests.e2e.kubelet.phones import SETS, binder_devices_of
from tests.e2e.kubelet.pods import container

ALL: Final = set(phones.phones(4))
BY_CDI: Final = "device_list: [envvar, cdi-cri]\n"
_HOST_USERS: Final = 65536
"""The first user ID that the kubelet does not reserve for the host."""
_NOBODY: Final = "65534"
"""The owner of a file in a user namespace in which its owner has no number."""


@pytest.fixture(scope="module")
def world(host: Host) -> Iterator[PodWorld]:
    """Serve phones by the pod of deploy/privileged."""
    world = pods.deployed(host, "privileged", ALL)
    yield world
    world.plugin.stop()


@pytest.fixture(scope="module")
def by_cdi(world: PodWorld) -> None:
    """Serve them by CDI."""
    _serve(world, f"phones: {{count: {len(ALL)}}}\n", ALL)


@pytest.fixture(scope="module")
def found(world: PodWorld) -> Iterator[None]:
    """Serve two sets of found devices by CDI."""
    phones.unmount_all()
    device_tool("create", "--count", "6")
    _serve(world, SETS, {"aosp_binder0", "aosp_binder3"})
    yield
    device_tool("delete")


def test_not_created(world: PodWorld) -> None:
    """Counter-example: with mounts in the answer to Allocate, the container is not created: binderfs has no ID maps."""
    pod = world.node.place(container("main", 1, resource=phones.RESOURCE), hostUsers=False)
    try:
        until(lambda: "idmap" in _waiting(pod).lower() or "mount_setattr" in _waiting(pod), "the mount is refused")
    finally:
        world.node.remove(pod)


@pytest.mark.usefixtures("by_cdi")
def test_phones(world: PodWorld) -> None:
    """By CDI, pods of two users at once have a phone each, in which root can neither change nor make a device."""
    with _pod(world) as pod, _pod(world) as neighbour:
        assert _user(world, pod) != _user(world, neighbour)
        for mine, other in ((pod, neighbour), (neighbour, pod)):
            phone, others = phone_of(mine), phone_of(other)
            world.tries(mine, phones.whole(phone) | phones.sealed() | phones.fixed())
            world.tries(mine, {f"see {path(others)}": "ENOENT", "mknod /dev/copy 1 3": "EPERM"})
            assert _owner(world, mine, "/dev/binder") == _NOBODY


@pytest.mark.usefixtures("by_cdi")
def test_fresh(world: PodWorld) -> None:
    """A restarted container has a fresh binderfs, and so has the next pod, of another user."""
    users = []
    for _ in range(2):
        with _pod(world) as pod:
            users.append(_user(world, pod))
            world.tries(pod, MANAGED)
            pod.restart_container()
            pod.view()
            world.tries(pod, phones.managed_by(1000))
    assert users[0] != users[1]


@pytest.mark.usefixtures("found")
def test_found(world: PodWorld) -> None:
    """Of found devices, a pod opens its own by their mode, and neither those of others nor binder-control."""
    with _pod(world) as pod, _pod(world) as neighbour:
        mine, others = binder_devices_of(pod.held()), binder_devices_of(neighbour.held())
        world.tries(pod, usable(mine) | dict.fromkeys((f"manage /dev/{name}" for name in NAMES), "EBUSY"))
        world.tries(
            pod,
            {
                f"open {SHARED}/{others[0]}": "EPERM",
                f"unlink {SHARED}/{others[0]}": "EROFS",
                f"chmod /dev/{mine[0]}": "EPERM",  # runc mounts it writable there, and it is another user's
                f"open {SHARED}/binder-control": "EACCES",
                f"see {BINDERFS}/{others[0]}": "ENOENT",
            },
        )
        assert _owner(world, pod, "/dev/binder") == _NOBODY
        os.chmod(f"{BINDERFS}/{mine[0]}", 0o600)  # as the driver makes it: its root is not the container's
        world.tries(pod, {f"open /dev/{mine[0]}": "EACCES"})
        os.chmod(f"{BINDERFS}/{mine[0]}", 0o666)


@pytest.mark.usefixtures("found")
def test_manager(world: PodWorld) -> None:
    """A device that is not recreated refuses the next pod, of another user, as context manager."""
    with _pod(world):
        for outcome in ("ok", "EPERM"):
            with _pod(world) as pod:
                world.tries(pod, dict.fromkeys(MANAGED, outcome))


def _serve(world: PodWorld, text: str, devices: set[str]) -> None:
    """Start the plugin with another configuration, by CDI."""
    world.plugin.stop()
    world.plugin.configure(f"version: v1\nverify: binder\nresource_name: {phones.RESOURCE}\n{BY_CDI}{text}")
    world.plugin.start()
    world.node.wait_allocatable(devices)


def _pod(world: PodWorld) -> AbstractContextManager[Placed]:
    return world.node.running(container("main", 1, resource=phones.RESOURCE), hostUsers=False)


def _waiting(pod: Placed) -> str:
    return str(pod.container()["state"]["waiting"]["message"])


def _user(world: PodWorld, pod: Placed) -> int:
    """Return the host's number of the container's root."""
    user = int(world.node.runtime.process_status(pod.container_id())["Uid"].split()[0])
    assert user >= _HOST_USERS, f"{pod.name} runs as a user of the host: {user}"
    return user


def _owner(world: PodWorld, pod: Placed, file: str) -> str:
    return world.node.runtime.execute(pod.container_id(), "/bin/busybox", "stat", "-c", "%u", file).strip()
