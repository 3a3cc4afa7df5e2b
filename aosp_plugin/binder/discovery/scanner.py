"""Reads the binder devices of the host: all of a device directory, or single ones.

``health`` evaluates the result, ``store`` remembers what is required of it.
"""

from __future__ import annotations

import posixpath
import stat
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import BinderDevice, Identity, Kind
from aosp_plugin.binder.discovery.names import name_problem
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from aosp_plugin.binder.devices.sets import Layout
    from aosp_plugin.binder.driver.host import Driver, Host


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


def scan(
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

    In a nested layout, each directory that may be a set's is to be watched, because devices may be added to it later.
    It may be a binderfs of its own, a link, or removed since ``directory`` was listed.
    """
    reader = DeviceReader(host, driver, directory, before)
    usable: list[str] = []
    skipped: dict[str, str] = {}
    for entry in host.listdir(reader.directory):
        if entry in before:
            usable.append(entry)
            continue
        part = layout.id_part(entry)
        if part is None or entry == CONTROL_NAME or (layout.nested and reader.directory_of(entry) is None):
            continue
        problem = name_problem(part + id_suffix)
        if problem is None:
            usable.append(entry)
        else:
            skipped[entry] = problem
    if layout.nested:
        devices = reader.read_all(name for entry in usable for name in layout.names_in(entry))
    else:
        devices = reader.read_files(usable)
    return Scan(devices, skipped, frozenset(reader.directories))


class DeviceReader:
    """Reads single binder devices. Caches what they share: the driver's state and the directories."""

    def __init__(
        self, host: Host, driver: Driver, directory: str, before: Mapping[str, BinderDevice] = MappingProxyType({})
    ) -> None:
        """``directory`` is the device directory, ``before`` is that of ``scan``. Raises OSError (ELOOP)."""
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
        self._set_directories: dict[str, str | None] = {}

    def read_all(self, names: Iterable[str]) -> dict[str, BinderDevice]:
        """Read these binder devices. Skips those that ``read`` does not find."""
        return {device.name: device for name in names if (device := self.read(name)) is not None}

    def read_files(self, names: Iterable[str]) -> dict[str, BinderDevice]:
        """Read these files of the device directory, as ``read_all`` does. Raises OSError if it cannot be opened."""
        devices = {}
        for name, status in self._host.lstat_all(self.directory, names):
            if (device := self._read(name, self.directory, name, status)) is not None:
                devices[name] = device
        return devices

    def read(self, name: str) -> BinderDevice | None:
        """Read one binder device. None if there is no such file, or a directory in its place.

        In a nested layout, the name has the form phone7/binder.
        """
        entry, _, file = name.rpartition("/")
        directory = self.directory_of(entry) if entry else self.directory
        if directory is None:
            return None
        self.directories.add(directory)
        try:
            status = self._host.lstat(posixpath.join(directory, file))
        except OSError:
            return None
        return self._read(name, directory, file, status)

    def _read(self, name: str, directory: str, file: str, status: os.stat_result) -> BinderDevice | None:
        """Read the binder device that ``file`` in ``directory`` is, or leads to."""
        if stat.S_ISLNK(status.st_mode):
            try:
                path = self._follow(posixpath.join(directory, file))
                directory, status = posixpath.dirname(path), self._host.lstat(path)
            except OSError:
                return BinderDevice(name, self._path_prefix + name, Kind.ABSENT)
        return None if stat.S_ISDIR(status.st_mode) else self._device(name, directory, status)

    def directory_of(self, entry: str) -> str | None:
        """Return the path, without links, of a directory in the device directory; None if ``entry`` is none."""
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

    def _device(self, name: str, directory: str, status: os.stat_result) -> BinderDevice:
        kind = kind_of(status, self._driver)
        root = self._root_of(directory, status.st_dev) if kind is Kind.BINDERFS else _NO_BINDERFS
        if root.control == status.st_ino:
            kind = Kind.OTHER  # a link to binder-control
        before = self._before.get(name)
        if (
            before is not None
            and before.kind is kind
            and before.directory == root.directory
            and before.identity == (status.st_dev, status.st_rdev, status.st_ino, root.since)
        ):
            return before
        identity = Identity(status.st_dev, status.st_rdev, status.st_ino, root.since)
        return BinderDevice(name, self._path_prefix + name, kind, identity, root.directory)

    def _root_of(self, directory: str, device: int) -> _Root:
        """Return the binderfs whose root is ``directory``.

        There is none if a single device was bind-mounted into /dev. Then no container may get that directory.
        """
        key = (directory, device)
        if key not in self._roots:
            self._roots[key] = self._read_root(directory, device)
        return self._roots[key]

    def _read_root(self, directory: str, device: int) -> _Root:
        try:
            root = self._host.lstat(directory)
            control = self._host.lstat(posixpath.join(directory, CONTROL_NAME))
        except OSError:
            return _NO_BINDERFS
        if not root.st_dev == control.st_dev == device:
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
