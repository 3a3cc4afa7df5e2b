"""Phones in pods with a user namespace (``hostUsers: false``).

The kubelet requests ID-mapped mounts for all mounts of such a pod, those of device plugins included. binderfs and
devtmpfs do not support them, and neither does ramfs, which represents them here; tmpfs does.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.common.processes import run
from tests.e2e.common.waiting import until
from tests.e2e.kubelet.node import COUNT, Node, Placed, device_tool
from tests.e2e.kubelet.phones import CONFIGURATION, PATHS, PHONE, PHONES, binder_devices_of
from tests.e2e.kubelet.pods import container

_RAMFS: Final = "/dev/ramfs"
ON_RAMFS: Final = f"{CONFIGURATION}device_dir: {_RAMFS}\n"
ON_RAMFS_BY_CDI: Final = f"{ON_RAMFS}device_list: [envvar, cdi-cri]\n"
_NAMES: Final = {os.path.basename(path) for path in PATHS}
_HOST_USERS: Final = 65536
"""The first user ID that the kubelet does not reserve for the host."""


@pytest.fixture
def ramfs(node: Node) -> None:
    """Mount the file system with devices, start the plugin, and wait for its phones."""
    if not os.path.ismount(_RAMFS):
        os.mkdir(_RAMFS)
        run("mount", "-t", "ramfs", "ramfs", _RAMFS)
        device_tool("create", "--stand-ins", "--count", str(COUNT), "--device-dir", _RAMFS)
    if not node.plugin.running():
        node.plugin.start()
    node.wait_allocatable(PHONES)


def test_no_user_namespaces(node: Node) -> None:
    """The kubelet does not start a pod with hostUsers: false, because the runtime does not support user namespaces."""
    with _pod_with_error(node, "runtime does not support user namespaces") as pod:
        assert pod.status["phase"] == "Pending"


def test_own_users(node: Node) -> None:
    """A pod with hostUsers: false has users of its own, and can open its phone's binder devices."""
    with node.running(container("main", 1, resource=PHONE), hostUsers=False) as pod:
        _assert_own_users(node, pod)
        _assert_phone(pod)


@pytest.mark.usefixtures("ramfs")
def test_host_users(node: Node) -> None:
    """The plugin finds the devices of a file system without ID-mapped mounts, as binderfs is; other pods open them."""
    with node.running_with(1) as pod:
        _assert_phone(pod)


@pytest.mark.usefixtures("ramfs")
def test_not_created(node: Node) -> None:
    """Counter-example: a container with hostUsers: false is not created, because its mounts cannot be ID-mapped."""
    with _pod_with_error(node, "idmap") as pod:
        assert "running" not in pod.container()["state"]


@pytest.mark.usefixtures("ramfs")
def test_by_name(node: Node) -> None:
    """By CDI a container with hostUsers: false has its phone from such a file system, and can open it."""
    with node.running(container("main", 1, resource=PHONE), hostUsers=False) as pod:
        _assert_own_users(node, pod)
        _assert_phone(pod)


@contextlib.contextmanager
def _pod_with_error(node: Node, error: str) -> Iterator[Placed]:
    """Create a pod with ``hostUsers: false``, wait until the kubelet logs the error, and delete the pod afterwards."""
    log = node.kubelet.daemon.log
    size = log.stat().st_size
    pod = node.place(container("main", 1, resource=PHONE), hostUsers=False)
    try:
        until(lambda: error in log.read_bytes()[size:].decode().lower(), f"the kubelet logs: {error}")
        yield pod
    finally:
        node.remove(pod)


def _assert_phone(pod: Placed) -> None:
    """Check that the container has its phone under its own names and at Android's paths, and can open it."""
    view, members = pod.view(), binder_devices_of(pod.held())
    assert view.opened == {*members, *_NAMES}
    assert [view.bound.get(path) for path in PATHS] == members


def _assert_own_users(node: Node, pod: Placed) -> None:
    """Check that the container's root is another user on the host."""
    users = node.runtime.process_status(pod.container_id())["Uid"].split()
    assert all(int(user) >= _HOST_USERS for user in users), f"user IDs on the host: {users}"
