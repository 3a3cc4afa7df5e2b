"""A binder device as one scan found it: name, kind and identity; and the driver of several."""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.driver import binderfs

if TYPE_CHECKING:
    from collections.abc import Collection

    from aosp_plugin.binder.driver.host import Host


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


_KINDS = (Kind.BINDERFS, Kind.CDEV, Kind.STAND_IN, Kind.FILE)

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


class DriverKind(NamedTuple):
    """Both are empty while they are unknown."""

    kind: str
    """binderfs, cdev, stand-in or file: the first of these that there is."""
    driver: str
    """The implementation of the driver, c or rust; empty for devices that are not binder."""


def driver_kind(host: Host, devices: Collection[BinderDevice]) -> DriverKind:
    """Return the kind of the devices, and their driver. Reads the host: for a worker thread."""
    kinds = {device.kind for device in devices}
    kind = next((kind for kind in _KINDS if kind in kinds), "")
    return DriverKind(str(kind), driver_of(host, devices))


def driver_of(host: Host, devices: Collection[BinderDevice]) -> str:
    """Return the implementation of the driver of the first device in a binderfs; c for other binder devices.

    Reads the host: for a worker thread.
    """
    directory = next((device.directory for device in devices if device.directory), None)
    if directory is None:
        return binderfs.C if any(device.kind is Kind.CDEV for device in devices) else ""
    with contextlib.suppress(OSError):
        return binderfs.implementation(host.process_path(directory))
    return ""
