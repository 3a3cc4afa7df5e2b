"""A binder device as one scan found it: name, kind and identity."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Kind(enum.StrEnum):
    """Type of the file. It determines how the binder device reaches a container (see ``backend.container_edits``)."""

    BINDERFS = "binderfs"
    """An inode of a binderfs, or a symbolic link to one. Only this inode opens; a copy of it fails with ENXIO."""
    CDEV = "cdev"
    """A misc device or a device of an out-of-tree module: every copy of the device number opens."""
    STAND_IN = "stand-in"
    """A character device of another driver, made with mknod for tests."""
    FILE = "file"
    """A regular file: for the demo, and for tests without root."""
    OTHER = "other"
    """A block device, socket or pipe: never allocated."""
    ABSENT = "absent"
    """The file does not exist, or it is a dangling link."""


FileSystem = tuple[int, int]
"""A file system: its st_dev and, for a binderfs, the time of its mount. See ``Identity``."""


class Identity(NamedTuple):
    """Distinguishes a binder device from a later one with the same name."""

    device: int
    """st_dev: the file system."""
    number: int
    """st_rdev: driver and minor number. 0 if the file is no device."""
    inode: int
    """st_ino."""
    since: int = 0
    """When its binderfs was mounted, in nanoseconds. 0 if unknown, and for other kinds.

    st_dev alone does not distinguish two mounts: the kernel reuses the number for the next mount (fs/super.c
    ``get_anon_bdev`` allocates the lowest free one).
    """

    @property
    def file_system(self) -> FileSystem:
        """The file system, distinct from earlier and later mounts with the same st_dev."""
        return self.device, self.since


class BinderDevice(NamedTuple):
    """A binder device as one scan found it. Paths are the host's, as the kubelet uses them."""

    name: str
    path: str
    """<device directory>/<name>."""
    kind: Kind
    identity: Identity | None = None
    """None if the kind is ABSENT."""
    directory: str = ""
    """The root of its binderfs. Empty for other kinds, and if the file itself is bind-mounted."""
