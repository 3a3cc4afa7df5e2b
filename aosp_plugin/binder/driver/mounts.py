"""The mount table of this process: /proc/self/mountinfo, in the format of proc_pid_mountinfo(5).

Reading it accesses no mounted file system, so that it never hangs.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MOUNTINFO = "/proc/self/mountinfo"

BINDERFS = "binder"
"""The type of a binderfs in /proc/filesystems and the mount table, for the C driver and the Rust driver."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mounted file system."""

    directory: str
    """Mount point: an absolute path without links. The mounted file, if a single file is bind-mounted."""
    device: int
    """st_dev of its files. No other file system has the same number at the same time."""
    type: str
    source: str
    """The source that was given to mount(2)."""
    options: str
    """Options of the file system, separated by commas."""
    id: int = 0
    """Mount ID. Distinguishes it from all other mounts of the host; the kernel reuses it after an unmount."""
    shared: bool = False
    """Whether it is in a peer group, so that what is mounted below it appears in other mount namespaces: in the host's,
    for a directory that a container has with ``mountPropagation: Bidirectional``."""
    slave: bool = False
    """Whether it receives the mounts of another mount namespace, where those made here do not appear: in a systemd
    service with ``ProtectSystem``."""


class BinderfsMount(NamedTuple):
    """A mounted binderfs."""

    directory: str
    """Mount point: an absolute path without links."""
    device: int
    """st_dev of every file in it. Different for each binderfs that is mounted at the same time."""
    max_devices: int | None
    """Mount option ``max=``: the maximum number of devices, binder-control excluded. None if the kernel omits it."""
    source: str = BINDERFS
    """The source that was given to mount(2). The kernel does not use it; a program recognises its own mount by it."""


def read() -> str:
    """Return the text of the mount table. Raises OSError."""
    with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def parse(mountinfo: str) -> tuple[Mount, ...]:
    """Return the mounts in the text of the mount table, in its order."""
    return tuple(map(_parse, _lines(mountinfo)))


def binderfs_numbers(mountinfo: str) -> frozenset[int]:
    """Return the number (st_dev) of each binderfs in the text of the mount table, of which it is a small part."""
    found = f" - {BINDERFS} "
    return frozenset(_parse(line).device for line in _lines(mountinfo) if found in line)


def _lines(mountinfo: str) -> list[str]:
    return mountinfo.rstrip("\n").split("\n") if mountinfo else []  # a path may contain other line separators


def _parse(line: str) -> Mount:
    mount_fields, _, file_system_fields = line.partition(" - ")
    fields = mount_fields.split(" ")
    major, _, minor = fields[2].partition(":")
    kind, source, *_, options = file_system_fields.split(" ")
    device = os.makedev(int(major), int(minor))
    shared, slave = (any(field.startswith(tag) for field in fields[6:]) for tag in ("shared:", "master:"))
    return Mount(_unescaped(fields[4]), device, kind, _unescaped(source), options, int(fields[0]), shared, slave)


def binderfs_mounts(mounts: Iterable[Mount]) -> tuple[BinderfsMount, ...]:
    """Return the mounts that are a binderfs, including bind mounts of single devices."""
    found = []
    for mount in mounts:
        if mount.type == BINDERFS:
            limit = dict(option.partition("=")[::2] for option in mount.options.split(",")).get("max", "")
            max_devices = int(limit) if limit.isdigit() else None
            found.append(BinderfsMount(mount.directory, mount.device, max_devices, mount.source))
    return tuple(found)


def _unescaped(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field) if "\\" in field else field
