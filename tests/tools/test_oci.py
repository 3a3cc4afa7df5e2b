"""The runtime spec of an allocation, whose errors would invalidate the kernel tests' proofs of isolation."""

import os
import stat
from typing import Any

from kubelet_standin import ContainerAllocation, DeviceSpec, Mount
from tests.e2e.common import oci

FILES = {
    "/dev/aosp_binder0": oci.File("/run/binderfs/aosp_binder0", stat.S_IFCHR | 0o666, os.makedev(511, 7), 1000, 1001),
    "/dev/aosp_binder1": oci.File("/run/binderfs/aosp_binder1", stat.S_IFCHR | 0o600, os.makedev(511, 8)),
    "/run/binderfs": oci.File("/run/binderfs", stat.S_IFDIR | 0o755),
}


def spec(devices: tuple[DeviceSpec, ...] = (), mounts: tuple[Mount, ...] = (), **options: Any) -> oci.Spec:
    """Return the spec of a container with these devices and mounts; ``options`` are those of ``oci.spec``."""
    allocation = ContainerAllocation("phone", {}, {}, mounts, devices, {}, ())
    options = {
        "rootfs": "/root",
        "arguments": ["/probe"],
        "cgroup": "/phone",
        "read_file": FILES.__getitem__,
        **options,
    }
    return oci.spec(allocation, **options)


def test_device_is_copied_from_its_link_target_and_allowed_by_one_rule() -> None:
    """Number, mode and owner are those of the link's target; the first rule denies all devices."""
    linux = spec(devices=(DeviceSpec("/dev/binder", "/dev/aosp_binder0", "rw"),))["linux"]
    assert linux["devices"] == [
        {"path": "/dev/binder", "type": "c", "major": 511, "minor": 7, "fileMode": 0o666, "uid": 1000, "gid": 1001}
    ]
    assert linux["resources"]["devices"] == [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 511, "minor": 7, "access": "rw"},
    ]


def test_mounts_follow_the_default_mounts_and_directories_come_first() -> None:
    """A mount below a directory would be hidden by a later mount of the directory."""
    mounts: list[dict[str, Any]] = spec(
        mounts=(
            Mount("/dev/binderfs/aosp_binder1", "/dev/aosp_binder1", read_only=False),
            Mount("/dev/binderfs", "/run/binderfs", read_only=True),
            Mount("/dev/aosp_binder0", "/dev/aosp_binder0", read_only=False),
        )
    )["mounts"]
    assert [mount["destination"] for mount in mounts[-3:]] == [
        "/dev/binderfs",
        "/dev/aosp_binder0",
        "/dev/binderfs/aosp_binder1",
    ]
    assert mounts[-3]["options"] == ["rbind", "rprivate", "ro"]
    assert mounts[-2]["source"] == "/run/binderfs/aosp_binder0"
    assert mounts[-2]["options"] == ["rbind", "rprivate", "rw"]
    assert "/dev" in [mount["destination"] for mount in mounts[:-3]]


def test_confinement_is_that_of_the_process_and_of_linux() -> None:
    """Without it, the kernel's own rules alone refuse what the items try."""
    container = spec()
    assert "CAP_MKNOD" in container["process"]["capabilities"]["effective"]
    assert "CAP_SYS_ADMIN" not in container["process"]["capabilities"]["bounding"]
    assert container["linux"]["resources"]["devices"] == [{"allow": False, "access": "rwm"}]
    assert "user" not in [namespace["type"] for namespace in container["linux"]["namespaces"]]
    assert not {"seccomp", "apparmorProfile"} & (container["linux"].keys() | container["process"].keys())
    confined = spec(confinement=oci.Confinement({"defaultAction": "SCMP_ACT_ERRNO"}, "profile"))
    assert confined["linux"]["seccomp"] == {"defaultAction": "SCMP_ACT_ERRNO"}
    assert confined["process"]["apparmorProfile"] == "profile"
