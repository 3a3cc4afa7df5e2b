"""Tables of operations that a process in a container tries, and of their expected results.

An operation is a line for ``probe.c``; the result is "ok", a number, or the name of the errno.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Final

from aosp_plugin.binder.driver import binderfs
from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel.confinement import CONFINED

SHARED: Final = "/dev/binderfs"
"""The binderfs in a container, with isolation shared."""


def words(operations: Iterable[str]) -> list[str]:
    """Return the probe's arguments."""
    return [word for operation in operations for word in operation.split()]


def compare(expected: Mapping[str, str], printed: str) -> None:
    """Check the probe's output. Raises AssertionError with all differences."""
    lines = printed.splitlines()
    assert len(lines) == len(expected), f"{len(expected)} operations, and the probe printed {printed!r}"
    results = dict(zip(expected, lines, strict=True))
    wrong = [
        f"{name!r} gave {result}, not {expected[name]}" for name, result in results.items() if result != expected[name]
    ]
    assert not wrong, "; ".join(wrong)


def usable(names: Iterable[str], where: str = "/dev") -> dict[str, str]:
    """Return the operations that show that devices are binder devices, each with a context of its own."""
    expected: dict[str, str] = {}
    for name in names:
        expected |= {f"open {where}/{name}": "ok", f"version {where}/{name}": "8", f"manage {where}/{name}": "ok"}
    return expected


def same_contexts(names: Iterable[str]) -> dict[str, str]:
    """Return the operations that show that both paths of a device are the same context."""
    expected: dict[str, str] = {}
    for name in names:
        expected |= {
            f"version {SHARED}/{name}": "8",
            f"manage /dev/{name}": "ok",
            f"manage {SHARED}/{name}": "EBUSY",
        }
    return expected


def others_closed(mine: str, neighbour: str) -> dict[str, str]:
    """Return the operations that show that another container's device is visible, but cannot be opened or changed."""
    return {
        f"see /dev/{neighbour}": "ENOENT",
        f"see {SHARED}/{neighbour}": "ok",
        f"open {SHARED}/{neighbour}": "EPERM",
        f"unlink {SHARED}/{neighbour}": "EROFS",
        f"rename {SHARED}/{neighbour} {SHARED}/stolen": "EROFS",
        f"rename {SHARED}/{mine} {SHARED}/{neighbour}": "EROFS",
        f"chmod {SHARED}/{neighbour}": "EROFS",
        f"chown {SHARED}/{neighbour}": "EROFS",
        f"chmod {SHARED}/{mine}": "EROFS",
        f"remount {SHARED}": "EPERM",
        f"create {SHARED}/file": "EROFS",
        f"mkdir {SHARED}/directory": "EROFS",
        # The logs of all contexts are absent, because the binderfs was mounted without stats=global.
        f"see {SHARED}/binder_logs": "ENOENT",
    }


def fixed(name: str) -> dict[str, str]:
    """Return the operations that show that a container cannot change its own device."""
    return {
        f"chmod /dev/{name}": "EROFS",
        f"chown /dev/{name}": "EROFS",
        # A mount point cannot be deleted.
        f"unlink /dev/{name}": "EBUSY",
        f"remount /dev/{name}": "EPERM",
    }


def control_closed() -> dict[str, str]:
    """Return the operations that show that a container can neither create devices nor mount a binderfs."""
    return {
        f"open {SHARED}/binder-control": "EPERM",
        f"add {SHARED}/binder-control aosp_binder7777": "EPERM",
        f"unlink {SHARED}/binder-control": "EROFS",
        mknod("/dev/control", f"{BINDERFS}/binder-control"): "ok",
        "add /dev/control aosp_binder7777": "EPERM",
        f"mount {SHARED}": "EPERM",
    }


def own_binderfs_closed() -> dict[str, str]:
    """Return the operations that show that a binderfs in a user namespace of the container's own is useless."""
    if CONFINED:
        return {"mkdir /own": "ok", "unshare": "EPERM", "mount /own": "EPERM", "see /own/binder-control": "ENOENT"}
    return {
        "mkdir /own": "ok",
        "unshare": "ok",
        "mount /own": "ok",
        "see /own/binder-control": "ok",
        "open /own/binder-control": "EPERM",
        "add /own/binder-control aosp_binder7777": "EPERM",
    }


def forged_closed(neighbour: str) -> dict[str, str]:
    """Return the operations that show that a copy of another container's device does not open."""
    return {mknod("/dev/copy", f"{BINDERFS}/{neighbour}"): "ok", "open /dev/copy": "EPERM"}


def strictly_closed(neighbour: str) -> dict[str, str]:
    """Return the operations that show that with isolation strict other devices are invisible and copies do not open."""
    return {
        f"see {SHARED}": "ENOENT",
        f"see /dev/{neighbour}": "ENOENT",
        **forged_closed(neighbour),
        mknod("/dev/control", f"{BINDERFS}/binder-control"): "ok",
        "add /dev/control aosp_binder7777": "EPERM",
        "mount /sys": "EPERM",
    }


def mknod(path: str, file: str) -> str:
    """Return the operation that copies a device of the host to ``path``."""
    number = os.stat(file).st_rdev
    return f"mknod {path} {os.major(number)} {os.minor(number)}"


def inodes() -> dict[str, tuple[int, int, int, int]]:
    """Return inode, number, mode and owner of each device of the binderfs, to detect changes by a container."""
    stats = {name: os.stat(f"{BINDERFS}/{name}") for name in binderfs.device_names(BINDERFS)}
    return {name: (stat.st_ino, stat.st_rdev, stat.st_mode, stat.st_uid) for name, stat in stats.items()}
