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
    device: int
    """st_dev of its files. No other file system has the same number at the same time."""
    type: str
    source: str
    """The source that was given to mount(2). The kernel does not use that of a binderfs; a program recognises its own
    mount by it."""
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
    root: str = "/"
    """What of the file system is mounted: all of it, or the directory or file with this path in it."""

    @property
    def max_devices(self) -> int | None:
        """Option ``max=`` of a binderfs: the maximum number of devices, binder-control excluded. None if not shown."""
        limit = dict(option.partition("=")[::2] for option in self.options.split(",")).get("max", "")
        return int(limit) if limit.isdigit() else None


def read_table(path: str = MOUNTINFO) -> str:
    """Return the text of a mount table. Raises OSError."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def parse(mountinfo: str) -> tuple[MountPoint, ...]:
    """Return the mounts in the text of the mount table, in its order."""
    lines = mountinfo.rstrip("\n").split("\n") if mountinfo else []  # a path may contain other line separators
    return tuple(map(_parse, lines))


def holders(mounted: Mapping[int, str]) -> dict[int, int]:
    """Return which file systems a visible process has otherwise than the host: the process ID by number (st_dev).

    ``mounted`` has their numbers, with the name of the directory that each is mounted on. A container has single files
    of it, or the whole on another directory. The same directory in another mount namespace is a copy, which an unmount
    on the host takes along. A process counts as invisible if this one has no right to trace it. Raises OSError.
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
            if mount.device in mounted and (mount.root, os.path.basename(mount.directory)) != (
                "/",
                mounted[mount.device],
            ):
                found[mount.device] = int(pid)
    return found


def _parse(line: str) -> MountPoint:
    mount_fields, _, file_system_fields = line.partition(" - ")
    fields = mount_fields.split(" ")
    major, _, minor = fields[2].partition(":")
    kind, source, *_, options = file_system_fields.split(" ")
    device = os.makedev(int(major), int(minor))
    shared, slave = (any(field.startswith(tag) for field in fields[6:]) for tag in ("shared:", "master:"))
    root, directory, source = map(_unescaped, (fields[3], fields[4], source))
    return MountPoint(directory, device, kind, source, options, int(fields[0]), shared, slave, root)


def _unescaped(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field) if "\\" in field else field
