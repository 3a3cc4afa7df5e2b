"""Binder devices as one scan finds them: those of a device directory, or single ones.

``store`` remembers them, and evaluates their health.
"""

import enum
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from aosp_plugin.binder.devices.sets import Layout
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.binder.driver.host import Driver, Host


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


_EVERYONE = 0o666
"""The mode bits of a device that all users may open."""

FileSystem = tuple[int, int]
"""A file system: its st_dev and, for a binderfs, the time of its mount. See ``FileIdentity``."""


class FileIdentity(NamedTuple):
    """Distinguishes a binder device from a later one with the same name."""

    st_dev: int
    """The file system."""
    st_rdev: int
    """The driver and its minor number; 0 if the file is not a device."""
    st_ino: int
    since: int = 0
    """When its binderfs was mounted, in nanoseconds. 0 if unknown, and for files in other file systems.

    st_dev alone does not distinguish two mounts: the kernel reuses the number for the next mount (fs/super.c
    ``get_anon_bdev`` allocates the lowest free one).
    """

    @property
    def file_system(self) -> FileSystem:
        """The file system, distinct from earlier and later mounts with the same st_dev."""
        return self.st_dev, self.since


class BinderDevice(NamedTuple):
    """A binder device as one scan found it. Paths are the host's, as the kubelet uses them."""

    name: str
    path: str
    """<device directory>/<name>."""
    kind: Kind
    identity: FileIdentity | None = None
    """None if the kind is ABSENT."""
    directory: str = ""
    """The root of its binderfs. Empty for other kinds, and if the file itself is bind-mounted."""
    real_path: str = ""
    """The path of the file itself, to which ``path`` may be a link. Empty if the kind is ABSENT."""
    restricted: bool = False
    """See ``is_restricted``."""

    @property
    def file(self) -> tuple[int, ...] | None:
        """What all paths of an existing device have in common at one moment, also hard links and bind mounts.

        Every copy of the number of a misc device opens the same device.
        """
        identity = self.identity
        return identity if identity is None or self.kind is not Kind.CDEV else (identity.st_rdev,)


class Scan(NamedTuple):
    """The result of a scan."""

    devices: dict[str, BinderDevice]
    """The binder devices by name."""
    skipped: Mapping[str, str]
    """Files that belong to the resource but are not usable, with the reason."""
    directories: frozenset[str]
    """Directories to watch: the device directory, those of sets, and all that contain a link on the path to a binder
    device, or its target, which need not exist."""


class _Root(NamedTuple):
    """The properties of a directory that a binder device in it depends on."""

    directory: str = ""
    """Empty if the directory is not the root of a binderfs."""
    since: int = 0
    """mtime of its binder-control in nanoseconds, which is the time of the mount (drivers/android/binderfs.c
    ``binderfs_binder_ctl_create``): nothing writes to that file."""
    control: int = 0
    """Inode of its binder-control."""


_NO_BINDERFS = _Root()


def scan_devices(
    host: Host,
    driver: Driver,
    directory: str,
    layout: Layout,
    id_suffix: str = "",
    before: Mapping[str, BinderDevice] = MappingProxyType({}),
) -> Scan:
    """Scan ``directory`` for the binder devices of ``layout``. Raises OSError if it cannot be listed.

    An ID must be valid with ``id_suffix``. A binder device that is as it was ``before`` is the same object, so that a
    scan without a change takes no memory.

    In a nested layout, each directory that may be a set's is watched, because devices may be added later. It may be a
    binderfs of its own, a link, or removed since ``directory`` was listed.
    """
    reader = DeviceReader(host, driver, directory, before)
    usable: list[str] = []
    skipped: dict[str, str] = {}
    for entry in host.listdir(reader.directory):
        if entry in before:
            usable.append(entry)
            continue
        if (
            layout.set_id_in(entry) is None
            or entry == CONTROL_NAME
            or (layout.files and reader.directory_of(entry) is None)
        ):
            continue
        problem = layout.problem(entry, id_suffix)
        if problem is None:
            usable.append(entry)
        else:
            skipped[entry] = problem
    places = [(entry, layout.files) for entry in usable] if layout.files else [("", usable)]
    devices = {device.name: device for entry, files in places for device in reader.read(entry, files)}
    return Scan(devices, skipped, frozenset(reader.directories))


class DeviceReader:
    """Reads single binder devices. Caches what they share: the driver's state and the directories."""

    def __init__(
        self, host: Host, driver: Driver, directory: str, before: Mapping[str, BinderDevice] = MappingProxyType({})
    ) -> None:
        """``directory`` is the device directory, ``before`` is that of ``scan_devices``. Raises OSError (ELOOP)."""
        self._host = host
        self._driver = driver
        self._before = before
        self._path_prefix = f"{directory.rstrip('/')}/"
        links: set[str] = set()
        self.directory = host.resolve(directory, links)
        """The device directory without links."""
        self.directories = {self.directory, *map(posixpath.dirname, links)}
        """See ``Scan.directories``."""
        self._roots: dict[tuple[str, int], _Root] = {}
        self._set_directories: dict[str, str | None] = {"": self.directory}

    def read(self, entry: str, files: Iterable[str]) -> Iterator[BinderDevice]:
        """Read these files of a set's directory, or of the device directory if ``entry`` is empty.

        Skips a file that does not exist, or is a directory.
        """
        directory = self.directory_of(entry)
        if directory is None:
            return
        self.directories.add(directory)
        path, prefix = directory.rstrip("/") + "/", entry and f"{entry}/"
        for file in files:
            try:
                status = self._host.lstat(path + file)
            except OSError:
                continue
            device = self._device(prefix + file, directory, file, status)
            if device is not None:
                yield device

    def directory_of(self, entry: str) -> str | None:
        """Return the path, without links, of a directory in the device directory; None if there is none."""
        if entry not in self._set_directories:
            self._set_directories[entry] = self._read_directory(posixpath.join(self.directory, entry))
        return self._set_directories[entry]

    def _read_directory(self, path: str) -> str | None:
        try:
            status = self._host.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                path = self._follow(path)
                status = self._host.lstat(path)
        except OSError:
            return None
        return path if stat.S_ISDIR(status.st_mode) else None

    def _follow(self, path: str) -> str:
        """Return the target of a link; its directory and those of all links on the way are watched. Raises OSError."""
        links: set[str] = set()
        try:
            target = self._host.resolve(path, links)
        finally:
            self.directories.update(map(posixpath.dirname, links))
        self.directories.add(posixpath.dirname(target))
        return target

    def _device(self, name: str, directory: str, file: str, status: os.stat_result) -> BinderDevice | None:
        """Return the binder device that ``file`` in ``directory`` is, or leads to; None if that is a directory."""
        path = f"{directory.rstrip('/')}/{file}"
        if stat.S_ISLNK(status.st_mode):
            try:
                path = self._follow(path)
                directory, status = posixpath.dirname(path), self._host.lstat(path)
            except OSError:
                return BinderDevice(name, self._path_prefix + name, Kind.ABSENT)
        if stat.S_ISDIR(status.st_mode):
            return None
        kind = kind_of(status, self._driver)
        # Also in a binderfs that was mounted after the driver's state was read: it would count as replaced later.
        root = self._root_of(directory, status.st_dev) if stat.S_ISCHR(status.st_mode) else _NO_BINDERFS
        if root.control == status.st_ino:
            kind = Kind.OTHER  # a link to binder-control
        root_directory = root.directory if kind is Kind.BINDERFS else ""
        identity = (status.st_dev, status.st_rdev, status.st_ino, root.since)
        found = (kind, identity, root_directory, path, is_restricted(status))
        before = self._before.get(name)
        if before is not None and before[2:] == found:
            return before
        own_path = self._path_prefix + name
        own_path = path if own_path == path else own_path  # one string in place of two, for each device
        return BinderDevice(name, own_path, kind, FileIdentity(*identity), *found[2:])

    def _root_of(self, directory: str, st_dev: int) -> _Root:
        """Return the binderfs whose root is ``directory``.

        A directory into which a single device was bind-mounted has none, and no container may get it.
        """
        key = (directory, st_dev)
        if key not in self._roots:
            self._roots[key] = self._read_root(directory, st_dev)
        return self._roots[key]

    def _read_root(self, directory: str, st_dev: int) -> _Root:
        try:
            root = self._host.lstat(directory)
            control = self._host.lstat(posixpath.join(directory, CONTROL_NAME))
        except OSError:
            return _NO_BINDERFS
        if not root.st_dev == control.st_dev == st_dev:
            return _NO_BINDERFS
        return _Root(directory, control.st_mtime_ns, control.st_ino)


def kind_of(status: os.stat_result, driver: Driver) -> Kind:
    """Return the kind of a file according to its type, file system and device number. Its name does not matter."""
    file_type = stat.S_IFMT(status.st_mode)
    if file_type != stat.S_IFCHR:
        return Kind.FILE if file_type == stat.S_IFREG else Kind.OTHER
    if status.st_dev in driver.file_systems:
        return Kind.BINDERFS
    return Kind.CDEV if driver.owns(status.st_rdev) else Kind.STAND_IN


def is_restricted(status: os.stat_result) -> bool:
    """Return whether some users cannot open a device because of its mode. Most processes of Android are not root's."""
    return stat.S_ISCHR(status.st_mode) and status.st_mode & _EVERYONE != _EVERYONE
