"""What Debian's policy of SELinux denies to containers with phones, and deploy/selinux/aosp-phone.cil allows them.

The containers have the type container_t, and each pod has categories of its own, from containerd.
"""

import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.kernel import phones, pods, selinux
from tests.e2e.kernel.operations import usable
from tests.e2e.kernel.phones import NAMES, path
from tests.e2e.kernel.pods import Host, PodWorld, phone_of
from tests.e2e.kubelet.node import Placed

ALL: Final = set(phones.phones(phones.COUNT))
_DEVICES: Final = [f"/dev/{name}" for name in NAMES]


@pytest.fixture(scope="module")
def world(host: Host) -> Iterator[PodWorld]:
    """Serve phones by the pod of deploy/privileged."""
    world = pods.deployed(host, "privileged", ALL)
    yield world
    _stop(world)


def test_denied(world: PodWorld) -> None:
    """With Debian's policy alone, devices have no label and do not open, if the runtime may create the container."""
    pod, neighbour = world.node.phones
    assert selinux.enforced()
    contexts = [_context(world, each) for each in (pod, neighbour)]
    assert {kind for kind, _ in contexts} == {"container_t"}
    assert all(re.fullmatch(r"s0:c\d+,c\d+", level) for _, level in contexts), contexts
    assert contexts[0] != contexts[1]
    selinux.denials()
    world.tries(pod, {f"open {device}": "EACCES" for device in _DEVICES})
    assert selinux.denials() == {"read write unlabeled_t chr_file"}


def test_unmanaged(world: PodWorld) -> None:
    """With labels alone they open, but for binder-control, and the driver refuses a context manager."""
    _remount(world, selinux.LABELLED)
    pod, _ = world.node.phones
    labels = {name: selinux.label_of(path(phone_of(pod), name)) for name in (*NAMES, "binder-control")}
    assert labels == dict.fromkeys(NAMES, "container_file_t") | {"binder-control": "device_t"}
    selinux.denials()
    world.tries(pod, {f"version {device}": "8" for device in _DEVICES})
    assert selinux.denials() == set()
    world.tries(pod, {f"manage {device}": "EACCES" for device in _DEVICES})
    assert selinux.denials() == {"set_context_mgr container_t binder"}


def test_allowed(world: PodWorld) -> None:
    """With the module, processes of a pod transact by its phone, and those of another one see nothing of it."""
    _remount(world, selinux.ALLOWED)
    pod, neighbour = world.node.phones
    selinux.denials()
    world.tries(pod, usable(NAMES))
    world.hold(pod, "binder")
    world.tries(pod, {"call /dev/binder": "ok"})
    world.tries(neighbour, {"call /dev/binder": "ESRCH", f"see {path(phone_of(pod))}": "ENOENT"})
    assert selinux.denials() == set()


def _remount(world: PodWorld, policy: str) -> None:
    """Load a policy, and mount the phones again: a file system keeps the labels of the policy at its mount."""
    _stop(world)
    selinux.load(policy)
    world.plugin.start()
    world.node.wait_allocatable(ALL)


def _stop(world: PodWorld) -> None:
    world.node.clear()
    world.plugin.stop()
    phones.unmount_all()


def _context(world: PodWorld, pod: Placed) -> tuple[str, str]:
    return selinux.context(world.node.runtime.oci_state(pod.container_id())["pid"])
