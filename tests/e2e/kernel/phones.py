"""Phones with a binderfs each: their mounts on the host, and tables of operations that a container of one tries."""

import os
import re
import shutil
import stat
from collections.abc import Iterable
from typing import Final

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import read_mounts
from kubelet_standin import ContainerAllocation
from tests.e2e.common.oci import CAPABILITIES
from tests.e2e.kernel.confinement import CONFINED
from tests.e2e.kernel.operations import SHARED, mknod

RESOURCE: Final = "aosp.io/phone"
COUNT: Final = 4
"""The phones that most tests need."""
DIRECTORY: Final = "/run/aosp-binderfs/phones"
SOURCE: Final = "aosp-phone"
NAMES: Final = ("binder", "hwbinder", "vndbinder")
MANAGED: Final = {f"manage /dev/{name}": "ok" for name in NAMES}
"""The operations that make a container the context manager of its phone."""
_FEATURES_SINCE: Final = (5, 15)
"""The first Linux whose binderfs has the directory ``features`` (commit fc470abf54b2, of July 2021)."""
NULL: Final = "1:3"
"""The device number of /dev/null."""
CONTROL: Final = f"{SHARED}/binder-control"

REDROID: Final = tuple(
    f"CAP_{name}"
    for name in (
        *("AUDIT_WRITE", "BLOCK_SUSPEND", "CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "MKNOD", "NET_ADMIN", "NET_RAW"),
        *("SETGID", "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE", "WAKE_ALARM"),
    )
)
"""The capabilities of deploy/examples/redroid.yaml, which allow to mount and unmount."""
ADMIN: Final = tuple({*CAPABILITIES, *REDROID})
"""These and the default ones."""


_MOVES_CHECKED_SINCE: Final = (6, 7)
"""The first Linux whose AppArmor checks the attachment of a detached mount (commit 157a3537d6bc, of October 2023)."""
_DENIED: Final = ("binder", "debugfs", "tracefs", "devtmpfs", "binfmt_misc")
"""The file systems that the AppArmor profile for phones denies."""


def _release(release: str) -> tuple[int, int]:
    major, minor = map(int, re.findall(r"[0-9]+", release)[:2])
    return major, minor


def files(release: str) -> str:
    """Return all names in a binderfs with the three devices, on a kernel of this release."""
    directories = ("features",) if _release(release) >= _FEATURES_SINCE else ()
    return ",".join(sorted((*NAMES, "binder-control", *directories)))


LISTED: Final = files(os.uname().release)
"""All that /dev/binderfs of a container has."""


def phone_of(allocation: ContainerAllocation) -> str:
    """Return the ID of a container's phone."""
    (phone,) = allocation.device_ids[RESOURCE]
    return phone


def path(phone: str, name: str = "") -> str:
    """Return the host's path of a phone, or of a file in its binderfs."""
    return f"{DIRECTORY}/{phone}/{name}".rstrip("/")


def phones(count: int) -> list[str]:
    """Return the IDs of the first phones."""
    return [f"phone{number}" for number in range(count)]


def mounted(directory: str = DIRECTORY) -> dict[str, int]:
    """Return the phones that are mounted, with the device number of the file system.

    Raises AssertionError if a mount covers another one, or if one is elsewhere.
    """
    found = [mount for mount in read_mounts() if mount.source == SOURCE]
    strays = [mount.directory for mount in found if os.path.dirname(mount.directory) != directory]
    assert not strays, f"mounted elsewhere: {strays}"
    devices = {os.path.basename(mount.directory): mount.st_dev for mount in found}
    assert len(devices) == len(found), f"mounted twice: {[mount.directory for mount in found]}"
    return devices


def unmount_all() -> None:
    """Unmount all phones, as a reboot does."""
    for phone in mounted():
        binderfs.unmount(path(phone))
    shutil.rmtree(DIRECTORY)


def require_whole(wanted: Iterable[str]) -> None:
    """Check that exactly these phones are mounted, each with its three devices of mode 0666 and no other file."""
    assert sorted(mounted()) == sorted(wanted), f"mounted: {sorted(mounted())}"
    incomplete = {phone: modes(phone) for phone in wanted if not is_whole(phone)}
    assert not incomplete, f"{incomplete}"


def is_whole(phone: str) -> bool:
    """Return whether a phone has its three devices of mode 0666 and no other file. It may be replaced just now."""
    try:
        found = modes(phone)
    except FileNotFoundError:
        return False
    return ",".join(found) == LISTED and {found[name] for name in NAMES} == {"666"}


def modes(phone: str) -> dict[str, str]:
    """Return the permissions of a phone's files by name."""
    return {name: f"{stat.S_IMODE(os.stat(path(phone, name)).st_mode):o}" for name in sorted(os.listdir(path(phone)))}


def inodes(wanted: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return what a container could change of the files of phones, and what distinguishes them from other files."""
    files: dict[str, tuple[int, ...]] = {}
    for phone in wanted:
        for name in os.listdir(path(phone)):
            found = os.stat(path(phone, name))
            identity = (found.st_dev, found.st_ino, found.st_rdev)
            files[path(phone, name)] = (*identity, found.st_mode, found.st_uid, found.st_gid)
    return files


def managed_by(user: int) -> dict[str, str]:
    """Return the operations that show that a user becomes the context manager at each of Android's paths."""
    return {f"become {user}": "ok"} | MANAGED


def whole(phone: str) -> dict[str, str]:
    """Return the operations that show that a container has its own phone, and no name of another one."""
    expected = {
        f"list {SHARED}": LISTED,
        f"list {DIRECTORY}": phone,
        f"list {path(phone)}": ",".join(NAMES),
    }
    for name in NAMES:
        expected |= {
            f"version /dev/{name}": "8",
            f"manage /dev/{name}": "ok",
            # Each device is one context, at whichever path.
            f"manage {SHARED}/{name}": "EBUSY",
            f"manage {path(phone, name)}": "EBUSY",
        }
    return expected


def sealed() -> dict[str, str]:
    """Return the operations that show that binder-control is a null device, and that there are no logs."""
    return {
        f"number {CONTROL}": NULL,
        f"open {CONTROL}": "ok",
        f"add {CONTROL} evil": "ENOTTY",
        f"see {SHARED}/binder_logs": "ENOENT",
    }


def fixed() -> dict[str, str]:
    """Return the operations that show that a container cannot change its own phone."""
    expected = {
        f"create {SHARED}/file": "EROFS",
        f"mkdir {SHARED}/directory": "EROFS",
        f"rename {SHARED}/hwbinder {SHARED}/binder": "EROFS",
        f"unlink {CONTROL}": "EROFS",
        f"remount {SHARED}": "EPERM",
        f"umount {SHARED}": "EPERM",
        f"umount {CONTROL}": "EPERM",
        f"configure {SHARED} max=0": "EPERM",
        f"freeze {SHARED}": "EPERM",
        f"mount {SHARED}": "EPERM",
    }
    for name in NAMES:
        expected |= {
            f"chmod {SHARED}/{name}": "EROFS",
            f"chown {SHARED}/{name}": "EROFS",
            f"unlink {SHARED}/{name}": "EROFS",
            f"chmod /dev/{name}": "EROFS",
            f"chown /dev/{name}": "EROFS",
            f"unlink /dev/{name}": "EBUSY",
            f"umount /dev/{name}": "EPERM",
            f"remount /dev/{name}": "EPERM",
        }
    return expected


def others_closed(phone: str, neighbour: str) -> dict[str, str]:
    """Return the operations that show that neither another phone nor a binder-control opens, whatever the path.

    The copies have the numbers that the files have on the host now.
    """
    expected = {
        f"see {path(neighbour)}": "ENOENT",
        f"see {SHARED}/../{neighbour}": "ENOENT",
    }
    for number, file in enumerate((*(path(neighbour, name) for name in NAMES), path(neighbour, "binder-control"))):
        expected |= {mknod(f"/dev/copy{number}", file): "ok", f"open /dev/copy{number}": "EPERM"}
    expected |= {mknod("/dev/control", path(phone, "binder-control")): "ok", "add /dev/control evil": "EPERM"}
    return expected


def namespaced() -> dict[str, str]:
    """Return the operations that show that a user namespace of the container's own opens nothing. They come last.

    Seccomp refuses the namespace, and all calls that change mounts.
    """
    if CONFINED:
        refused = ("unshare", f"umount {CONTROL}", f"umount {SHARED}", f"configure {SHARED} max=0", "mount /own")
        return {"mkdir /own": "ok", **dict.fromkeys(refused, "EPERM"), "see /own/binder-control": "ENOENT"}
    return {
        "mkdir /own": "ok",
        "unshare": "ok",
        f"umount {CONTROL}": "EINVAL",
        f"umount {SHARED}": "EINVAL",
        f"remount {SHARED}": "EPERM",
        f"configure {SHARED} max=0": "EPERM",
        "mount-logs /own": "EPERM",
        "mount /own": "ok",
        "see /own/binder_logs": "ENOENT",
        "open /own/binder-control": "EPERM",
        "add /own/binder-control evil": "EPERM",
    }


def administered() -> dict[str, str]:
    """Return what a container with CAP_SYS_ADMIN can do to its own phone, and that even so no binder-control opens.

    Seccomp allows it what its capabilities allow. AppArmor refuses each mount, and each change of one except its end.
    """
    if CONFINED:
        mounting = (f"remount {SHARED}", f"configure {SHARED} max=0", "mount /own", "mount-logs /logs")
        changing = ("unlink", "chmod", "chown")
        return {
            f"umount {CONTROL}": "ok",
            f"open {CONTROL}": "EPERM",
            f"add {CONTROL} evil": "EPERM",
            "mkdir /own": "ok",
            "mkdir /logs": "ok",
            **dict.fromkeys(mounting, "EACCES"),
            **{f"{operation} {SHARED}/hwbinder": "EROFS" for operation in changing},
            f"create {SHARED}/file": "EROFS",
            f"rename {SHARED}/vndbinder {SHARED}/stolen": "EROFS",
            "see /own/binder-control": "ENOENT",
            "see /logs/binder-control": "ENOENT",
        }
    return {
        f"umount {CONTROL}": "ok",
        f"open {CONTROL}": "EPERM",
        f"add {CONTROL} evil": "EPERM",
        f"remount {SHARED}": "ok",
        f"create {SHARED}/file": "EACCES",
        f"mkdir {SHARED}/directory": "EPERM",
        f"unlink {CONTROL}": "EPERM",
        f"chmod {SHARED}/binder": "ok",
        f"chown {SHARED}/binder": "ok",
        f"unlink {SHARED}/hwbinder": "ok",
        f"rename {SHARED}/vndbinder {SHARED}/stolen": "ok",
        f"configure {SHARED} stats=global": "EINVAL",
        f"configure {SHARED} max=0": "ok",
        "mkdir /own": "ok",
        "mount /own": "ok",
        "see /own/binder_logs": "ENOENT",
        "open /own/binder-control": "EPERM",
        "add /own/binder-control evil": "EPERM",
        # It can read the logs of all binder devices, but open none.
        "mkdir /logs": "ok",
        "mount-logs /logs": "ok",
        "see /logs/binder_logs/state": "ok",
        "open /logs/binder-control": "EPERM",
    }


def profiled() -> dict[str, str]:
    """Return what a container with CAP_SYS_ADMIN can mount with the AppArmor profile for phones."""
    overlay = "lowerdir=/own,upperdir=/tmpfs/upper,workdir=/tmpfs/work"
    return {
        **{f"mkdir /{name}": "ok" for name in ("own", "tmpfs", "proc2", "sysfs", "overlay", "bound", "moved")},
        **{f"mount-as {kind} /own -": "EACCES" for kind in _DENIED},
        "mount-logs /own": "EACCES",
        "mount-as tmpfs /tmpfs -": "ok",
        "mount-as proc /proc2 -": "ok",
        "mount-as sysfs /sysfs -": "ok",
        "mkdir /tmpfs/upper": "ok",
        "mkdir /tmpfs/work": "ok",
        f"mount-as overlay /overlay {overlay}": "ok",
        "bind /tmpfs /bound": "ok",
        "move /bound /moved": "EACCES",
        "umount /overlay": "ok",
        **uncovered(),
        **dict.fromkeys(_of_the_host(), "EACCES"),
        # Rules for files have paths; only those for mounts hold at another one.
        "open /proc2/sysrq-trigger": "ok",
    }


def profiled_in_namespace() -> dict[str, str]:
    """Return the same in a user namespace of the container's own."""
    return {
        "mkdir /own": "ok",
        "unshare": "ok",
        **{f"mount-as {kind} /own -": "EACCES" for kind in _DENIED},
        "mount-as tmpfs /own -": "ok",
    }


def detached(release: str) -> dict[str, str]:
    """Return what fsopen(2) does in spite of the profile: the kernel checks only the attachment, and that since 6.7."""
    attached = _release(release) < _MOVES_CHECKED_SINCE
    return {
        "mkdir /own": "ok",
        "detach binder": "ok",
        "attach /own": "ok" if attached else "EACCES",
        "see /own/binder-control": "ok" if attached else "ENOENT",
        # The device cgroup.
        "open /own/binder-control": "EPERM" if attached else "ENOENT",
    }


def unfiltered() -> dict[str, str]:
    """Return how CAP_SYS_ADMIN removes its container's device filter, and opens /dev/kmsg, which it was not given."""
    return {
        "mknod /before 1 11": "ok",
        "open /before": "EPERM",
        "detach-filter /sys/fs/cgroup": "ok",
        "mknod /after 1 11": "ok",
        "open /after": "ok",
    }


def filtered() -> dict[str, str]:
    """Return that it cannot with both profiles for phones, under which it can mount what it needs."""
    removed = {"detach-filter /sys/fs/cgroup": "ENOSYS", "detach binder": "ENOSYS", "detach cgroup2": "ENOSYS"}
    return unfiltered() | removed | {"open /after": "EPERM"} | profiled()


def _of_the_host() -> tuple[str, ...]:
    """Return the operations that open files of the whole host for writing."""
    files = ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/sys/module/binder_linux/parameters/debug_mask")
    return tuple(f"open {file}" for file in files)


def uncovered() -> dict[str, str]:
    """Return how CAP_SYS_ADMIN makes writable what the runtime has mounted read-only in /proc and /sys."""
    read_only = {"open /proc/sys/kernel/modprobe": "EROFS"}
    return read_only | {"umount /proc/sysrq-trigger": "ok", "umount /proc/sys": "ok", "configure /sys rw": "ok"}


def in_own_cgroup(neighbour: str, *, delegated: bool) -> dict[str, str]:
    """Return what a container can do in a writable cgroup, as ``cgroup_writable`` of containerd mounts it.

    ``delegated`` is whether the host's cgroup file system has the option nsdelegate.
    """
    return {
        "mkdir /sys/fs/cgroup/early": "EROFS",
        "remount /sys/fs/cgroup": "ok",
        "mkdir /sys/fs/cgroup/app": "ok",
        "write /sys/fs/cgroup/app/cgroup.procs 0": "ok",
        # The device cgroup of the parent holds.
        mknod("/dev/copy", path(neighbour, NAMES[0])): "ok",
        "open /dev/copy": "EPERM",
        "write /sys/fs/cgroup/pids.max max": "EPERM" if delegated else "ok",
    }


def without_profile() -> dict[str, str]:
    """Return what the same container can do without a profile."""
    return {
        "mkdir /own": "ok",
        "mkdir /debug": "ok",
        "mount-logs /own": "ok",
        "see /own/binder_logs/state": "ok",
        "mount-as debugfs /debug -": "ok",
        **uncovered(),
        **dict.fromkeys(_of_the_host(), "ok"),
    }


def spoiled() -> dict[str, str]:
    """Return how a container with CAP_SYS_ADMIN makes its whole binderfs read-only, and unmounts it."""
    return {f"freeze {SHARED}": "EACCES" if CONFINED else "ok", f"umount {CONTROL}": "ok", f"umount {SHARED}": "ok"}
