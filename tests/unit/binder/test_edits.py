"""What a container needs for its nodes: devices, mounts and environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aosp_plugin.binder.devices.edits import (
    OWN_BINDERFS,
    Device,
    Isolation,
    Mount,
    Policy,
    SharedPath,
    container_path,
    edits_for,
)
from aosp_plugin.binder.discovery.binder_device import BinderDevice, Identity, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

NOTHING: frozenset[str] = frozenset()


def binderfs_node(number: int, directory: str = "/run/binderfs") -> BinderDevice:
    """Return a link in /dev to a node of a binderfs."""
    name = f"aosp_binder{number}"
    return BinderDevice(name, f"/dev/{name}", Kind.BINDERFS, Identity(70, number, number), directory)


def plain_node(number: int, kind: Kind = Kind.CDEV, host_directory: str = "/dev") -> BinderDevice:
    """Return a node that needs no mount."""
    name = f"aosp_binder{number}"
    return BinderDevice(name, f"{host_directory}/{name}", kind, Identity(5, number, number))


def test_a_binderfs_node_is_a_device_and_a_mount_at_the_same_path() -> None:
    """The mount brings the inode and the device opens the cgroup: either alone fails."""
    made = edits_for([binderfs_node(1)], Policy(shared_mounts=(), shared_devices=()), NOTHING)
    assert made.devices == (Device("/dev/aosp_binder1", "/dev/aosp_binder1", "rw"),)
    assert made.mounts == (Mount("/dev/aosp_binder1", "/dev/aosp_binder1", read_only=True),)


@pytest.mark.parametrize("kind", [Kind.CDEV, Kind.STAND_IN, Kind.FILE])
def test_any_other_node_is_a_device_alone(kind: Kind) -> None:
    """A copy of its number opens, so that a mount would add nothing."""
    made = edits_for([plain_node(1, kind)], Policy(), NOTHING)
    assert made.devices == (Device("/dev/aosp_binder1", "/dev/aosp_binder1", "rw"),)
    assert made.mounts == ()


def test_the_container_finds_its_nodes_in_dev_wherever_the_host_has_them() -> None:
    """The host's path is the device directory's, the container's is /dev."""
    node = plain_node(3, host_directory="/run/nodes")
    assert container_path(node) == "/dev/aosp_binder3"
    assert edits_for([node], Policy(), NOTHING).devices == (
        Device("/run/nodes/aosp_binder3", "/dev/aosp_binder3", "rw"),
    )


def test_a_node_that_comes_twice_counts_once_and_the_order_stays() -> None:
    """The order is the caller's: in a set of named nodes it is that of the names."""
    nodes = [binderfs_node(10), plain_node(9), binderfs_node(2)]
    expected = edits_for(nodes, Policy(), NOTHING)
    assert [device.host_path for device in expected.devices] == [f"/dev/aosp_binder{n}" for n in (10, 9, 2)]
    assert expected.environment["BINDER_VISIBLE_DEVICES"] == "aosp_binder10,aosp_binder9,aosp_binder2"
    assert edits_for([*nodes, nodes[0]], Policy(), NOTHING) == expected


PHONE = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")


@pytest.mark.parametrize("make", [binderfs_node, plain_node])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_first_nodes_are_mounted_at_the_container_paths_in_turn(
    make: Callable[[int], BinderDevice], count: int
) -> None:
    """Fewer nodes than paths: the first paths. More: the rest keep their own names only."""
    nodes = [make(number) for number in range(count)]
    made = edits_for(nodes, Policy(container_paths=PHONE, shared_mounts=()), NOTHING)
    further = [(mount.host_path, mount.container_path) for mount in made.mounts if mount.container_path in PHONE]
    assert further == [(node.path, path) for node, path in zip(nodes, PHONE, strict=False)]
    assert [device.container_path for device in made.devices] == [container_path(node) for node in nodes]


def test_a_container_path_that_is_the_node_s_own_is_mounted_once() -> None:
    """A runtime would mount the second over the first."""
    node = binderfs_node(1)._replace(name="binder", path="/dev/phone7/binder")
    made = edits_for([node], Policy(container_paths=("/dev/binder",), shared_mounts=()), NOTHING)
    assert made.mounts == (Mount("/dev/phone7/binder", "/dev/binder", read_only=True),)


def test_the_own_binderfs_is_shared_read_only() -> None:
    """In a writable one any root could unlink or rename every tenant's nodes."""
    made = edits_for([binderfs_node(1), binderfs_node(2)], Policy(), NOTHING)
    assert made.mounts[2:] == (Mount("/run/binderfs", "/dev/binderfs", read_only=True),)


def test_the_binderfs_of_the_first_node_that_has_one_is_the_shared_one() -> None:
    """There is one place for it in the container, and nodes without a directory of their own don't count."""
    nodes = [binderfs_node(1, ""), binderfs_node(2, "/run/b"), binderfs_node(3, "/run/c")]
    made = edits_for(nodes, Policy(), NOTHING)
    assert made.mounts[-1] == Mount("/run/b", "/dev/binderfs", read_only=True)
    assert len(made.mounts) == 4


@pytest.mark.parametrize("nodes", [[plain_node(1)], [binderfs_node(1, "")]])
def test_nodes_without_a_binderfs_directory_share_none(nodes: list[BinderDevice]) -> None:
    """The word for the own binderfs is never taken for a path of the host."""
    made = edits_for(nodes, Policy(), frozenset({OWN_BINDERFS, ""}))
    assert all(mount.container_path != "/dev/binderfs" for mount in made.mounts)


def test_strict_isolation_shares_no_directory_but_its_devices() -> None:
    """The container sees its own nodes alone; a shared device is no directory."""
    policy = Policy(
        isolation=Isolation.STRICT, shared_mounts=(SharedPath(OWN_BINDERFS, "/dev/binderfs"), SharedPath("/x", "/x"))
    )
    made = edits_for([binderfs_node(1)], policy, frozenset({"/x", "/dev/ashmem"}))
    assert made.mounts == (Mount("/dev/aosp_binder1", "/dev/aosp_binder1", read_only=True),)
    assert made.devices[-1] == Device("/dev/ashmem", "/dev/ashmem", "rw")


def test_shared_paths_are_given_where_the_host_has_them() -> None:
    """An absent path would keep the container from starting."""
    policy = Policy(
        shared_mounts=(SharedPath("/a", "/in/a"), SharedPath("/b", "/in/b")),
        shared_devices=(SharedPath("/dev/c", "/dev/in-c"), SharedPath("/dev/d", "/dev/d")),
    )
    made = edits_for([plain_node(1)], policy, frozenset({"/b", "/dev/c"}))
    assert made.mounts == (Mount("/b", "/in/b", read_only=True),)
    assert made.devices[1:] == (Device("/dev/c", "/dev/in-c", "rw"),)


def test_a_shared_mount_may_name_the_binderfs_by_its_path() -> None:
    """The directory of a node that is there needs no further proof that it exists."""
    policy = Policy(shared_mounts=(SharedPath("/run/binderfs", "/dev/b"), SharedPath("/run/other", "/dev/o")))
    made = edits_for([binderfs_node(1)], policy, NOTHING)
    assert made.mounts[1:] == (Mount("/run/binderfs", "/dev/b", read_only=True),)


def test_permissions_are_the_operator_s_for_nodes_and_shared_devices() -> None:
    """They go into the device cgroup as they are."""
    made = edits_for([plain_node(1)], Policy(permissions="rwm"), frozenset({"/dev/ashmem"}))
    assert [device.permissions for device in made.devices] == ["rwm", "rwm"]


def test_the_environment_names_the_nodes_and_the_path() -> None:
    """Both variables are there by default."""
    made = edits_for([plain_node(1)], Policy(), NOTHING)
    assert made.environment == {
        "BINDER_VISIBLE_DEVICES": "aosp_binder1",
        "PATH": "/system/bin:/system/xbin",
    }


def test_both_variables_can_be_changed_and_turned_off() -> None:
    """Empty means that the container's own value stays."""
    assert edits_for([plain_node(1)], Policy(visible_devices_variable="NODES", path="/bin"), NOTHING).environment == {
        "NODES": "aosp_binder1",
        "PATH": "/bin",
    }
    assert edits_for([plain_node(1)], Policy(visible_devices_variable="", path=""), NOTHING).environment == {}
    assert edits_for([plain_node(1)], Policy(path=""), NOTHING).environment == {
        "BINDER_VISIBLE_DEVICES": "aosp_binder1"
    }


def test_one_container_s_edits_know_nothing_of_another_s() -> None:
    """Two calls share no object that either could change."""
    first = edits_for([plain_node(1)], Policy(), NOTHING)
    second = edits_for([plain_node(2)], Policy(), NOTHING)
    assert first.environment is not second.environment
    assert first.environment["BINDER_VISIBLE_DEVICES"] == "aosp_binder1"
