"""The runtime spec that an allocation becomes: what is asserted with real runtimes rests on it being containerd's."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.testing import ContainerAllocation, DeviceSpec, Mount
from tests.e2e.common import oci

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "/dev/aosp_binder0": oci.File("/run/binderfs/aosp_binder0", stat.S_IFCHR | 0o666, os.makedev(511, 7), 1000, 1001),
    "/dev/aosp_binder1": oci.File("/run/binderfs/aosp_binder1", stat.S_IFCHR | 0o600, os.makedev(511, 8)),
    "/dev/vda": oci.File("/dev/vda", stat.S_IFBLK | 0o660, os.makedev(254, 0)),
    "/run/binderfs": oci.File("/run/binderfs", stat.S_IFDIR | 0o755),
}


def spec(*, devices: tuple[DeviceSpec, ...] = (), mounts: tuple[Mount, ...] = (), **more: Any) -> oci.Spec:
    """Return the spec of a container with these."""
    allocation = ContainerAllocation("phone", {}, more.pop("envs", {}), mounts, devices, {}, ())
    return oci.spec(
        allocation, rootfs="/root", arguments=["/probe", "x"], cgroup="/phone", look=FILES.__getitem__, **more
    )


def test_a_device_becomes_a_copy_of_what_its_link_leads_to_and_one_rule_of_the_cgroup() -> None:
    """Number, mode and owner are the node's; all that is not named is denied first."""
    made = spec(devices=(DeviceSpec("/dev/binder", "/dev/aosp_binder0", "rw"),))["linux"]
    assert made["devices"] == [
        {"path": "/dev/binder", "type": "c", "major": 511, "minor": 7, "fileMode": 0o666, "uid": 1000, "gid": 1001}
    ]
    assert made["resources"]["devices"] == [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 511, "minor": 7, "access": "rw"},
    ]


def test_a_block_device_is_one() -> None:
    """The type is the file's."""
    made = spec(devices=(DeviceSpec("/dev/vda", "/dev/vda", "r"),))["linux"]
    assert (made["devices"][0]["type"], made["resources"]["devices"][1]["type"]) == ("b", "b")


def test_what_is_no_device_is_refused() -> None:
    """As containerd refuses it, which fails the container."""
    with pytest.raises(ValueError, match="/run/binderfs is not a device"):
        spec(devices=(DeviceSpec("/dev/x", "/run/binderfs", "rw"),))


def test_mounts_come_after_the_containers_own_and_directories_before_what_is_in_them() -> None:
    """A mount below another one would be hidden by it."""
    made = spec(
        mounts=(
            Mount("/dev/binderfs/aosp_binder1", "/dev/aosp_binder1", read_only=False),
            Mount("/dev/binderfs", "/run/binderfs", read_only=True),
            Mount("/dev/aosp_binder0", "/dev/aosp_binder0", read_only=False),
        )
    )["mounts"]
    assert [one["destination"] for one in made[-3:]] == [
        "/dev/binderfs",
        "/dev/aosp_binder0",
        "/dev/binderfs/aosp_binder1",
    ]
    assert made[-3] == {
        "destination": "/dev/binderfs",
        "type": "bind",
        "source": "/run/binderfs",
        "options": ["rbind", "rprivate", "ro"],
    }
    assert made[-2]["source"] == "/run/binderfs/aosp_binder0"
    assert made[-2]["options"] == ["rbind", "rprivate", "rw"]
    assert "/dev" in [one["destination"] for one in made[:-3]]


def test_a_container_has_what_containerd_gives_it_and_no_more() -> None:
    """Neither SYS_ADMIN nor any device; MKNOD though."""
    made = spec(envs={"PATH": "/system/bin", "A": "b"})
    capabilities = made["process"]["capabilities"]
    assert capabilities["effective"] == capabilities["bounding"] == list(oci.CAPABILITIES)
    assert "CAP_MKNOD" in oci.CAPABILITIES
    assert "CAP_SYS_ADMIN" not in oci.CAPABILITIES
    assert made["process"]["env"] == ["PATH=/system/bin", "A=b"]
    assert made["process"]["args"] == ["/probe", "x"]
    assert made["linux"]["resources"]["devices"] == [{"allow": False, "access": "rwm"}]
    assert "user" not in [one["type"] for one in made["linux"]["namespaces"]]
    assert "uidMappings" not in made["linux"]


def test_a_user_namespace_maps_root_to_the_first_id() -> None:
    """Both kinds of ID alike."""
    linux = spec(first_host_id=100_000)["linux"]
    assert {"type": "user"} in linux["namespaces"]
    assert linux["uidMappings"] == linux["gidMappings"] == [{"containerID": 0, "hostID": 100_000, "size": 65536}]


def test_look_follows_links(tmp_path: Path) -> None:
    """The path that comes out is free of them."""
    (tmp_path / "link").symlink_to("/dev/null")
    seen = oci.look(str(tmp_path / "link"))
    assert (seen.path, seen.number, stat.S_ISCHR(seen.mode)) == ("/dev/null", os.makedev(1, 3), True)
    with pytest.raises(FileNotFoundError):
        oci.look(str(tmp_path / "nothing"))
