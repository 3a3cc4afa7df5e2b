"""What a container runtime is told: a container's allocation as an OCI runtime spec, the way containerd writes it.

Functions of their inputs; what the host's files are comes in as ``look``. Followed are containerd's
``pkg/oci`` (``WithDevices``, ``populateDefaultUnixSpec``, ``defaultUnixCaps``) and
``internal/cri/opts`` (``WithMounts``, ``WithDevices``) for an unprivileged container without a seccomp profile.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aosp_plugin.testing import ContainerAllocation, DeviceSpec, Mount

    Look = Callable[[str], "File"]
    Spec = dict[str, Any]

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CAPABILITIES: Final = tuple(
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
        *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    )
)
"""What a container has that asks for nothing. MKNOD is among them."""

MASKED: Final = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/sys/firmware")
READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


class File(NamedTuple):
    """A file of the host, links followed."""

    path: str
    mode: int
    """st_mode."""
    number: int = 0
    """st_rdev."""
    uid: int = 0
    gid: int = 0


def look(path: str) -> File:
    """Follow the links of ``path``, and look at what is there. Raises OSError."""
    real = os.path.realpath(path, strict=True)
    seen = os.stat(real)
    return File(real, seen.st_mode, seen.st_rdev, seen.st_uid, seen.st_gid)


def spec(
    allocation: ContainerAllocation,
    *,
    rootfs: str,
    arguments: Sequence[str],
    cgroup: str,
    first_host_id: int | None = None,
    look: Look = look,
) -> Spec:
    """Return the config.json of a container that runs ``arguments`` as root, with what ``allocation`` gives it.

    ``first_host_id`` gives it a user namespace of 65,536 IDs, whose root is that user of the host.
    """
    devices = [device(one, look) for one in allocation.devices]
    environment = {"PATH": DEFAULT_PATH, **allocation.envs}
    namespaces = ["pid", "ipc", "uts", "mount", "network", "cgroup"]
    linux: Spec = {
        "cgroupsPath": cgroup,
        "devices": devices,
        "maskedPaths": list(MASKED),
        "readonlyPaths": list(READ_ONLY),
        "resources": {"devices": [{"allow": False, "access": "rwm"}, *map(_rule, devices, allocation.devices)]},
    }
    if first_host_id is not None:
        namespaces.append("user")
        mapping = {"containerID": 0, "hostID": first_host_id, "size": 65536}
        linux |= {"uidMappings": [mapping], "gidMappings": [mapping]}
    linux["namespaces"] = [{"type": name} for name in namespaces]
    return {
        "ociVersion": "1.0.2",
        "hostname": allocation.name,
        "root": {"path": rootfs},
        "process": {
            "args": list(arguments),
            "cwd": "/",
            "env": [f"{name}={value}" for name, value in environment.items()],
            "user": {"uid": 0, "gid": 0},
            "capabilities": {name: list(CAPABILITIES) for name in ("bounding", "effective", "permitted")},
        },
        "mounts": [*_own_mounts(), *mounts(allocation.mounts, look)],
        "linux": linux,
    }


def device(asked: DeviceSpec, look: Look) -> Spec:
    """Return an entry of ``linux.devices``: a copy of the host's device, made by mknod."""
    seen = look(asked.host_path)
    if not (stat.S_ISCHR(seen.mode) or stat.S_ISBLK(seen.mode)):
        raise ValueError(f"{asked.host_path} is not a device")
    return {
        "path": asked.container_path,
        "type": "c" if stat.S_ISCHR(seen.mode) else "b",
        "major": os.major(seen.number),
        "minor": os.minor(seen.number),
        "fileMode": stat.S_IMODE(seen.mode),
        "uid": seen.uid,
        "gid": seen.gid,
    }


def _rule(made: Spec, asked: DeviceSpec) -> Spec:
    """Return the device cgroup's leave for a device."""
    return {"allow": True, **{name: made[name] for name in ("type", "major", "minor")}, "access": asked.permissions}


def mounts(asked: Sequence[Mount], look: Look) -> list[Spec]:
    """Return the bind mounts, those of directories before those below them."""
    return [
        {
            "destination": one.container_path,
            "type": "bind",
            "source": look(one.host_path).path,
            "options": ["rbind", "rprivate", "ro" if one.read_only else "rw"],
        }
        for one in sorted(asked, key=lambda one: len(os.path.normpath(one.container_path).split("/")))
    ]


def _own_mounts() -> list[Spec]:
    """Return what every container has mounted."""
    table = [
        ("/proc", "proc", "proc", "nosuid,noexec,nodev"),
        ("/dev", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
        ("/dev/pts", "devpts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"),
        ("/dev/mqueue", "mqueue", "mqueue", "nosuid,noexec,nodev"),
        ("/dev/shm", "tmpfs", "shm", "nosuid,noexec,nodev,mode=1777,size=65536k"),
        ("/sys", "sysfs", "sysfs", "nosuid,noexec,nodev,ro"),
        ("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid,noexec,nodev,relatime,ro"),
    ]
    return [
        {"destination": destination, "type": kind, "source": source, "options": options.split(",")}
        for destination, kind, source, options in table
    ]
