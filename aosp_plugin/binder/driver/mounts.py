"""The mount tables of this process and of others: /proc/PID/mountinfo, in the format of proc_pid_mountinfo(5).

Reading them accesses no mounted file system, so that it never hangs.
"""

import errno
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

MOUNTINFO = "/proc/self/mountinfo"

BINDERFS = "binder"
"""The type of a binderfs in /proc/filesystems and the mount table, for the C driver and the Rust driver."""

_INVISIBLE = frozenset({errno.EACCES, errno.ENOENT, errno.ESRCH, errno.EINVAL})
"""Errors for the files of a process that this one must not trace, or that has ended meanwhile."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class MountPoint(NamedTuple):
    """A mounted file system."""

    directory: str
    """Mount point: an absolute path without links. The mounted file, if a single file is bind-mounted."""
    st_dev: int
    """The file system: st_dev of its files. No other file system has the same number at the same time."""
    type: str
    source: str
    """The source that was given to mount(2). The kernel ignores it for a binderfs; a program recognises its own mounts
    by it."""
    id: int = 0
    """Mount ID. Distinguishes it from all other mounts of the host; the kernel reuses it after an unmount."""
    shared: bool = False
    """Whether it is in a peer group, so that what is mounted below it appears in other mount namespaces: in the host's,
    for a directory that a container has with ``mountPropagation: Bidirectional``."""
    slave: bool = False
    """Whether it receives the mounts of another mount namespace, where those made here do not appear: in a systemd
    service with ``ProtectSystem``."""
    root: str = "/"
    """The path, in the file system, of the directory or file that is mounted; / for all of it."""


def read_table(path: str = MOUNTINFO) -> str:
    """Return the text of a mount table. Raises OSError."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def parse(mountinfo: str) -> tuple[MountPoint, ...]:
    """Return the mounts in the text of the mount table, in its order."""
    lines = mountinfo.rstrip("\n").split("\n") if mountinfo else []  # a path may contain other line separators
    return tuple(map(_parse, lines))


def users(mounted: Mapping[int, str]) -> dict[int, int]:
    """Return a process that uses each file system, by st_dev; those that no visible process uses are left out.

    ``mounted`` has the name of the directory that each file system is mounted on, by st_dev. A container that uses one
    has single files of it mounted, or all of it on another directory. The same directory in another mount namespace is
    a copy of the mount, which ends with an unmount on the host. Processes that this one may not trace are invisible.
    Raises OSError.
    """
    found: dict[int, int] = {}
    namespaces: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            table = () if namespace in namespaces else parse(read_table(f"/proc/{pid}/mountinfo"))
        except OSError as error:
            if error.errno not in _INVISIBLE:
                raise
            continue
        namespaces.add(namespace)
        for mount in table:
            if mount.st_dev in mounted and (mount.root, os.path.basename(mount.directory)) != (
                "/",
                mounted[mount.st_dev],
            ):
                found[mount.st_dev] = int(pid)
    return found


def _parse(line: str) -> MountPoint:
    mount_fields, _, file_system_fields = line.partition(" - ")
    fields = mount_fields.split(" ")
    major, _, minor = fields[2].partition(":")
    kind, source, *_ = file_system_fields.split(" ")
    st_dev = os.makedev(int(major), int(minor))
    shared, slave = (any(field.startswith(tag) for field in fields[6:]) for tag in ("shared:", "master:"))
    root, directory, source = map(_unescaped, (fields[3], fields[4], source))
    return MountPoint(directory, st_dev, kind, source, int(fields[0]), shared, slave, root)


def _unescaped(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field) if "\\" in field else field
