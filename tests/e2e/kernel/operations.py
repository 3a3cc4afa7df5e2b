"""What a process in a container tries, and what should come of it: tables of operations and outcomes.

An operation is a line of words that ``probe.c`` knows; what comes of it is "ok", a number or the errno's name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from tests.e2e.kernel.world import BINDERFS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHARED: Final = "/dev/binderfs"
"""Where a container finds the binderfs of its nodes, with isolation shared."""


def words(operations: Iterable[str]) -> list[str]:
    """Return the probe's arguments."""
    return [word for operation in operations for word in operation.split()]


def compare(expected: Mapping[str, str], printed: str) -> None:
    """Check what the probe printed. Raises AssertionError with each difference."""
    lines = printed.splitlines()
    assert len(lines) == len(expected), f"{len(expected)} operations, and the probe printed {printed!r}"
    found = dict(zip(expected, lines, strict=True))
    wrong = [f"{one!r} gave {result}, not {expected[one]}" for one, result in found.items() if result != expected[one]]
    assert not wrong, "; ".join(wrong)


def usable(names: Iterable[str], where: str = "/dev") -> dict[str, str]:
    """Return what shows that nodes are binder's, and each a context of its own."""
    expected: dict[str, str] = {}
    for name in names:
        expected |= {f"open {where}/{name}": "ok", f"version {where}/{name}": "8", f"manage {where}/{name}": "ok"}
    return expected


def same_contexts(names: Iterable[str]) -> dict[str, str]:
    """Return what shows that nodes are the same in both places: a second manager is told EBUSY."""
    expected: dict[str, str] = {}
    for name in names:
        expected |= {
            f"version {SHARED}/{name}": "8",
            f"manage /dev/{name}": "ok",
            f"manage {SHARED}/{name}": "EBUSY",
        }
    return expected


def others_closed(mine: str, other: str) -> dict[str, str]:
    """Return what shows that another tenant's node is seen, and nothing can be done to it."""
    return {
        f"see /dev/{other}": "ENOENT",
        f"see {SHARED}/{other}": "ok",
        f"open {SHARED}/{other}": "EPERM",
        f"unlink {SHARED}/{other}": "EROFS",
        f"rename {SHARED}/{other} {SHARED}/stolen": "EROFS",
        f"rename {SHARED}/{mine} {SHARED}/{other}": "EROFS",
        f"chmod {SHARED}/{other}": "EROFS",
        f"chown {SHARED}/{other}": "EROFS",
        f"chmod {SHARED}/{mine}": "EROFS",
        f"remount {SHARED}": "EPERM",
        f"create {SHARED}/file": "EROFS",
        f"mkdir {SHARED}/directory": "EROFS",
        # What all contexts of the host do is not written there, as its binderfs was mounted without stats=global.
        f"see {SHARED}/binder_logs": "ENOENT",
    }


def fixed(name: str) -> dict[str, str]:
    """Return what shows that a container can't change its own node, which the next tenant gets."""
    return {
        f"chmod /dev/{name}": "EROFS",
        f"chown /dev/{name}": "EROFS",
        # It is a mount point, which nobody takes away.
        f"unlink /dev/{name}": "EBUSY",
        f"remount /dev/{name}": "EPERM",
    }


def control_closed() -> dict[str, str]:
    """Return what shows that no node can be made, and no binderfs mounted."""
    return {
        f"open {SHARED}/binder-control": "EPERM",
        f"add {SHARED}/binder-control aosp_binder7777": "EPERM",
        f"unlink {SHARED}/binder-control": "EROFS",
        mknod("/dev/control", "binder-control"): "ok",
        "add /dev/control aosp_binder7777": "EPERM",
        f"mount {SHARED}": "EPERM",
    }


def own_binderfs_closed() -> dict[str, str]:
    """Return what shows that a binderfs that is mounted in a user namespace of the container's own opens nothing."""
    return {
        "mkdir /own": "ok",
        "unshare": "ok",
        "mount /own": "ok",
        "see /own/binder-control": "ok",
        "open /own/binder-control": "EPERM",
        "add /own/binder-control aosp_binder7777": "EPERM",
    }


def forged_closed(other: str) -> dict[str, str]:
    """Return what shows that a copy of another tenant's node does not open, though mknod itself is allowed."""
    return {mknod("/dev/copy", other): "ok", "open /dev/copy": "EPERM"}


def strictly_closed(other: str) -> dict[str, str]:
    """Return what shows that with isolation strict no directory shows others' nodes, and no copy opens."""
    return {
        f"see {SHARED}": "ENOENT",
        f"see /dev/{other}": "ENOENT",
        **forged_closed(other),
        mknod("/dev/control", "binder-control"): "ok",
        "add /dev/control aosp_binder7777": "EPERM",
        "mount /sys": "EPERM",
    }


def mknod(path: str, name: str) -> str:
    """Return the operation that copies a node of the binderfs to ``path``."""
    number = os.stat(f"{BINDERFS}/{name}").st_rdev
    return f"mknod {path} {os.major(number)} {os.minor(number)}"


def inodes() -> dict[str, tuple[int, int, int, int]]:
    """Return what tells every node of the binderfs from what a container may have made of it."""
    seen = {name: os.stat(f"{BINDERFS}/{name}") for name in binderfs.devices_in(BINDERFS)}
    return {name: (one.st_ino, one.st_rdev, one.st_mode, one.st_uid) for name, one in seen.items()}
