"""What a container gets for its binder devices: device nodes, mounts and environment."""

from typing import Any

from aosp_plugin.backend.container_edits import AllocatedDevice, EditsBuilder
from aosp_plugin.backend.shared_paths import SharedFiles
from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, Kind
from aosp_plugin.config.keys import Resource
from aosp_plugin.config.values import OWN_BINDERFS, Isolation
from aosp_plugin.framework.backend import ContainerEdits, DeviceNode, Mount

PHONE = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")


def in_binderfs(number: int, directory: str = "/run/binderfs") -> BinderDevice:
    """Return a link in /dev to a device of a binderfs."""
    name = f"aosp_binder{number}"
    return BinderDevice(name, f"/dev/{name}", Kind.BINDERFS, FileIdentity(70, number, number), directory)


def plain(number: int, kind: Kind = Kind.CDEV, host_directory: str = "/dev") -> BinderDevice:
    """Return a binder device outside a binderfs."""
    name = f"aosp_binder{number}"
    return BinderDevice(name, f"{host_directory}/{name}", kind, FileIdentity(5, number, number))


def edits(*members: BinderDevice, shared: SharedFiles | None = None, **keys: Any) -> ContainerEdits:
    """Return the edits for a container with one device; ``keys`` are configuration keys."""
    builder = EditsBuilder(Resource(**keys))
    return builder.for_container([AllocatedDevice("phone", members)], shared or SharedFiles())


def test_device_of_another_kind_is_a_device_node_alone() -> None:
    """Its container path is in /dev for every host directory."""
    result = edits(plain(1, Kind.STAND_IN, host_directory="/run/binders"))
    node = DeviceNode("/run/binders/aosp_binder1", "/dev/aosp_binder1", "rw")
    assert (result.devices, result.mounts) == ([node], [])


def test_device_of_a_binderfs_outside_dev_has_its_device_node_at_the_host_path() -> None:
    """A pod with a user namespace requires that; /dev/<name> is a further mount."""
    path = "/run/aosp-binderfs/devices/aosp_binder3"
    result = edits(in_binderfs(3)._replace(path=path), shared_mounts=())
    assert result.devices == [DeviceNode(path, path, "rw")]
    assert result.mounts == [Mount(path, path), Mount(path, "/dev/aosp_binder3")]


def test_members_keep_their_order_and_occur_once() -> None:
    """The order of a named set is that of its names."""
    members = [in_binderfs(10), plain(9), in_binderfs(2)]
    result = edits(*members)
    assert [node.host_path for node in result.devices] == [f"/dev/aosp_binder{n}" for n in (10, 9, 2)]
    assert result.environment["BINDER_VISIBLE_DEVICES"] == "aosp_binder10,aosp_binder9,aosp_binder2"
    assert edits(*members, members[0]) == result


def test_container_paths_belong_to_the_first_members() -> None:
    for make, count in ((in_binderfs, 1), (in_binderfs, 5), (plain, 3)):
        members = [make(number) for number in range(count)]
        result = edits(*members, container_paths=PHONE, shared_mounts=())
        extra = [(mount.host_path, mount.container_path) for mount in result.mounts if mount.container_path in PHONE]
        assert extra == [(member.path, path) for member, path in zip(members, PHONE, strict=False)]
        assert [node.container_path for node in result.devices] == [f"/dev/aosp_binder{n}" for n in range(count)]


def test_container_path_that_equals_the_device_path_is_mounted_once() -> None:
    member = in_binderfs(1)._replace(name="binder", path="/dev/phone7/binder")
    result = edits(member, container_paths=("/dev/binder",), shared_mounts=())
    assert result.mounts == [Mount("/dev/phone7/binder", "/dev/binder", read_only=True)]


def test_shared_binderfs_is_that_of_the_first_member_with_a_directory() -> None:
    """It is read-only. A bind-mounted device has no directory.

    Only a mount and a device node together open: the mount has the inode, the device node opens the device cgroup.
    """
    own_mount = Mount("/dev/aosp_binder1", "/dev/aosp_binder1", read_only=True)
    result = edits(in_binderfs(1, ""))
    assert result.devices == [DeviceNode("/dev/aosp_binder1", "/dev/aosp_binder1", "rw")]
    assert result.mounts == [own_mount]
    result = edits(in_binderfs(1, ""), in_binderfs(2, "/run/b"), in_binderfs(3, "/run/c"))
    assert result.mounts[::3] == [own_mount, Mount("/run/b", "/dev/binderfs", read_only=True)]


def test_strict_isolation_omits_shared_mounts_but_not_shared_devices() -> None:
    """Paths that do not exist are always omitted: the container would not start."""
    own_mount, ashmem = Mount("/dev/aosp_binder1", "/dev/aosp_binder1"), ("/dev/ashmem", "/dev/in-c")
    for isolation, mounts in ((Isolation.SHARED, [Mount("/x", "/in/x")]), (Isolation.STRICT, [])):
        result = edits(
            in_binderfs(1, ""),
            shared=SharedFiles(frozenset({"/x"}), (ashmem,)),
            isolation=isolation,
            shared_mounts=(f"{OWN_BINDERFS}:/dev/binderfs", "/x:/in/x", "/absent:/in/absent"),
        )
        assert result.mounts == [own_mount, *mounts]
        assert result.devices[1:] == [DeviceNode(*ashmem)]


def test_environment_has_the_configured_variables() -> None:
    cases: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {"BINDER_VISIBLE_DEVICES": "aosp_binder1", "PATH": "/system/bin:/system/xbin"}),
        ({"visible_devices_env": "DEVICES", "path_env": "/bin"}, {"DEVICES": "aosp_binder1", "PATH": "/bin"}),
        ({"visible_devices_env": "", "path_env": ""}, {}),
    ]
    for keys, environment in cases:
        assert edits(plain(1), **keys).environment == environment
