"""Write the OCI runtime spec for a container's allocation, as containerd does.

Pure functions; ``read_file`` reads the host's files. They follow containerd's ``pkg/oci`` (``WithDevices``,
``populateDefaultUnixSpec``, ``defaultUnixCaps``) and ``internal/cri/opts`` (``WithMounts``, ``WithDevices``) for an
unprivileged container, by default without a seccomp filter and an AppArmor profile.
"""

import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kubelet_standin import ContainerAllocation, DeviceSpec, Mount

ReadFile = Callable[[str], "File"]
Spec = dict[str, Any]

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CAPABILITIES: Final = tuple(
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
        *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    )
)
"""The default capabilities of a container, which include MKNOD."""

MASKED: Final = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/sys/firmware")
READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


class File(NamedTuple):
    """A file of the host, with links resolved."""

    path: str
    mode: int
    """st_mode."""
    number: int = 0
    """st_rdev."""
    uid: int = 0
    gid: int = 0


class Confinement(NamedTuple):
    """What restricts the system calls of a container."""

    seccomp: Spec | None = None
    """The filter, as in the runtime spec."""
    apparmor: str = ""
    """The name of a loaded profile."""


UNCONFINED: Final = Confinement()


def read_file(path: str) -> File:
    """Resolve the links of ``path``, and return the file. Raises OSError."""
    real = os.path.realpath(path, strict=True)
    status = os.stat(real)
    return File(real, status.st_mode, status.st_rdev, status.st_uid, status.st_gid)


def spec(
    allocation: ContainerAllocation,
    *,
    rootfs: str,
    arguments: Sequence[str],
    cgroup: str,
    first_host_id: int | None = None,
    capabilities: Sequence[str] = CAPABILITIES,
    confinement: Confinement = UNCONFINED,
    read_file: ReadFile = read_file,
) -> Spec:
    """Return the config.json of a container that runs ``arguments`` as root with an allocation.

    With ``first_host_id`` the container has a user namespace of 65,536 IDs that starts at this ID of the host.
    ``capabilities`` are all that the container has.
    """
    devices = [device(entry, read_file) for entry in allocation.devices]
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
    if confinement.seccomp is not None:
        linux["seccomp"] = confinement.seccomp
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
            "capabilities": {name: list(capabilities) for name in ("bounding", "effective", "permitted")},
            **({"apparmorProfile": confinement.apparmor} if confinement.apparmor else {}),
        },
        "mounts": [*_default_mounts(), *mounts(allocation.mounts, read_file)],
        "linux": linux,
    }


def device(entry: DeviceSpec, read_file: ReadFile) -> Spec:
    """Return an entry of ``linux.devices``, for which the runtime creates a copy of the host's device by mknod."""
    file = read_file(entry.host_path)
    if not (stat.S_ISCHR(file.mode) or stat.S_ISBLK(file.mode)):
        raise ValueError(f"{entry.host_path} is not a device")
    return {
        "path": entry.container_path,
        "type": "c" if stat.S_ISCHR(file.mode) else "b",
        "major": os.major(file.number),
        "minor": os.minor(file.number),
        "fileMode": stat.S_IMODE(file.mode),
        "uid": file.uid,
        "gid": file.gid,
    }


def _rule(device: Spec, entry: DeviceSpec) -> Spec:
    """Return the device cgroup's rule that allows a device."""
    return {"allow": True, **{name: device[name] for name in ("type", "major", "minor")}, "access": entry.permissions}


def mounts(entries: Sequence[Mount], read_file: ReadFile) -> list[Spec]:
    """Return the bind mounts; a directory comes before mounts below it."""
    return [
        {
            "destination": mount.container_path,
            "type": "bind",
            "source": read_file(mount.host_path).path,
            "options": ["rbind", "rprivate", "ro" if mount.read_only else "rw"],
        }
        for mount in sorted(entries, key=lambda mount: len(os.path.normpath(mount.container_path).split("/")))
    ]


def _default_mounts() -> list[Spec]:
    """Return the mounts of every container."""
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
