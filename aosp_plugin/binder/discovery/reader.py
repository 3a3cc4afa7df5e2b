"""Reads single binder devices of the host, and what they depend on."""

from __future__ import annotations

import posixpath
import stat
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import ABSENT, TIMED_OUT, Kind, Place, binder_device
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.binder.errors import NotRespondingError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from aosp_plugin.binder.discovery.binder_device import BinderDevice, Found
    from aosp_plugin.binder.driver.host import Driver, Host


class BinderfsRoot(NamedTuple):
    """The properties of a directory that a binder device in it depends on."""

    directory: str = ""
    """Empty if the directory is not the root of a binderfs."""
    since: int = 0
    """mtime of its binder-control in nanoseconds, which is the time of the mount (drivers/android/binderfs.c
    ``binderfs_binder_ctl_create``): nothing writes to that file."""
    control: int = 0
    """Inode of its binder-control."""


_NO_BINDERFS = BinderfsRoot()

_NO_PLACE = Place(Kind.OTHER)


class DeviceReader:
    """Reads single binder devices. Caches what they share: the driver's state and the directories."""

    def __init__(self, host: Host, driver: Driver, directory: str) -> None:
        """``directory`` is the device directory. Raises OSError (ELOOP) and NotRespondingError."""
        self._host = host
        self._driver = driver
        self._path_prefix = directory.rstrip("/") + "/"
        self._guarded = host.guarded
        links: set[str] = set()
        self._real_directory = host.resolve(directory, links)
        self._real_path_prefix = self._real_directory.rstrip("/") + "/"
        self._roots: dict[tuple[str, int], BinderfsRoot] = {}
        self._real_directories: dict[str, str | None] = {}
        self._hanging: dict[str, bool] = {}
        self._sets_that_may_hang: set[str] = set()
        self._places: dict[Place, Place] = {}
        """Each place once for all devices that share it."""
        self.targets: set[str] = {posixpath.dirname(link) for link in links}
        """Directories that contain a link on the path to a device, or its target."""
        self.links: dict[str, list[str]] = {}
        """See ``Scan.links``."""
        self.sets: set[str] = set()
        """See ``Scan.sets``."""
        self.set_links: dict[str, list[str]] = {}
        """See ``Scan.set_links``."""
        self.may_hang: set[str] = set()
        """See ``Scan.may_hang``."""

    def devices(self, names: Iterable[str]) -> list[BinderDevice]:
        """Read these binder devices as ``read_all`` does."""
        return [binder_device(self._path_prefix, name, found) for name, found in self.read_all(names).items()]

    def read_all(self, names: Iterable[str]) -> dict[str, Found]:
        """Read these binder devices, in this order. Skips those that ``read`` does not find."""
        return {name: found for name in names if (found := self.read(name)) is not None}

    def read_files(self, names: Iterable[str], before: Mapping[str, Found]) -> dict[str, Found]:
        """Read these files of the device directory as ``read_all`` does, with as little work for each as possible.

        Not if a file system may hang. A file with the mode and the file system of the previous one has its place,
        unless the number of the device matters. What is as it was found ``before`` is the same object, so that a scan
        without a change takes little memory. Raises OSError if the device directory cannot be opened.
        """
        all_found: dict[str, Found] = {}
        driver, by_number = self._driver, self._driver.has_numbers
        mode = device = control = -1
        place = _NO_PLACE
        for name, status in self._host.lstat_all(self._real_directory, names):
            number, inode = status.st_rdev, status.st_ino
            if (
                status.st_mode == mode
                and status.st_dev == device
                and inode != control
                and (not by_number or driver.owns(number) is (place.kind is Kind.CDEV))
            ):
                same = (place, number, inode)
                all_found[name] = before[name] if before.get(name) == same else same
                continue
            found = self._read_status(name, self._real_directory, self._real_path_prefix + name, status)
            if found is not None:
                all_found[name] = found = before[name] if before.get(name) == found else found
                if not stat.S_ISLNK(status.st_mode):
                    place, mode, device = found[0], status.st_mode, status.st_dev
                    control = self._root_of(self._real_directory, device).control if place.directory else -1
        return all_found

    def read(self, name: str) -> Found | None:
        """Read one binder device. None if there is no such file, or a directory in its place.

        In a nested layout, the name has the form phone7/binder.
        """
        try:
            return self._read(name)
        except NotRespondingError:
            self.may_hang.add(name)
            return TIMED_OUT

    def _read(self, name: str) -> Found | None:
        directory = self._real_directory
        real_path = self._real_path_prefix + name
        if "/" in name:
            entry, _, file = name.rpartition("/")
            set_directory = self.real_directory(entry)
            if set_directory is None:
                return None
            directory, real_path = set_directory, posixpath.join(set_directory, file)
            if self._guarded:
                self._note_if_it_may_hang(set_directory, name)
                if entry in self._sets_that_may_hang:
                    self.may_hang.add(name)
        try:
            status = self._host.lstat(real_path)
        except OSError:
            return None
        return self._read_status(name, directory, real_path, status)

    def _read_status(self, name: str, directory: str, real_path: str, status: os.stat_result) -> Found | None:
        if stat.S_ISLNK(status.st_mode):
            return self._read_link(name, real_path)
        return None if stat.S_ISDIR(status.st_mode) else self._found(directory, status)

    def may_be_directory(self, entry: str) -> bool:
        """Return whether ``entry`` is a directory in the device directory, or a link to a file system that hangs."""
        try:
            return self.real_directory(entry) is not None
        except NotRespondingError:
            return True

    def real_directory(self, entry: str) -> str | None:
        """Return the path, without links, of a directory in the device directory; None if ``entry`` is none.

        Raises NotRespondingError.
        """
        if entry not in self._real_directories:
            self._real_directories[entry] = self._read_directory(entry)
        return self._real_directories[entry]

    def _read_directory(self, entry: str) -> str | None:
        path = posixpath.join(self._real_directory, entry)
        try:
            status = self._host.lstat(path)
        except OSError:
            return None
        if stat.S_ISLNK(status.st_mode):
            return self._read_directory_link(entry, path)
        if not stat.S_ISDIR(status.st_mode):
            return None
        self.sets.add(entry)
        return path

    def _read_directory_link(self, entry: str, path: str) -> str | None:
        depends_on: set[str] = set()
        try:
            target = self._host.resolve(path, depends_on)
            depends_on.add(target)
            if self._guarded and any(self._host.may_hang(self._host.process_path(link)) for link in depends_on):
                self._sets_that_may_hang.add(entry)
            status = self._host.lstat(target)
        except OSError:
            return None
        finally:
            for file in depends_on - {path}:
                self.targets.add(posixpath.dirname(file))
                self.set_links.setdefault(file, []).append(entry)
        if not stat.S_ISDIR(status.st_mode):
            return None
        self.targets.add(target)
        return target

    def _read_link(self, name: str, real_path: str) -> Found | None:
        depends_on: set[str] = set()
        try:
            target = self._host.resolve(real_path, depends_on)
            depends_on.add(target)
            directory = target.rpartition("/")[0] or "/"
            status = self._host.lstat(target)
        except OSError:
            return ABSENT
        finally:
            self._watch(depends_on - {real_path}, name)
        return None if stat.S_ISDIR(status.st_mode) else self._found(directory, status)

    def _watch(self, files: set[str], name: str) -> None:
        """Record that a binder device depends on these files."""
        for file in files:
            directory = posixpath.dirname(file)
            self.targets.add(directory)
            self.links.setdefault(file, []).append(name)
            if self._guarded:
                self._note_if_it_may_hang(directory, name)

    def _note_if_it_may_hang(self, directory: str, name: str) -> None:
        """Record that a binder device depends on a file in ``directory``, if a call on that may hang."""
        if directory not in self._hanging:
            self._hanging[directory] = self._host.may_hang(self._host.process_path(directory))
        if self._hanging[directory]:
            self.may_hang.add(name)

    def _found(self, directory: str, status: os.stat_result) -> Found:
        kind = kind_of(status, self._driver)
        root = self._root_of(directory, status.st_dev) if kind is Kind.BINDERFS else _NO_BINDERFS
        if root.control == status.st_ino:
            kind = Kind.OTHER  # a link to binder-control
        place = Place(kind, status.st_dev, root.since, root.directory)
        return self._places.setdefault(place, place), status.st_rdev, status.st_ino

    def _root_of(self, directory: str, device: int) -> BinderfsRoot:
        """Return the binderfs whose root is ``directory``.

        There is none if a single device was bind-mounted into /dev. Then no container may get that directory.
        """
        key = (directory, device)
        if key not in self._roots:
            self._roots[key] = self._read_root(directory, device)
        return self._roots[key]

    def _read_root(self, directory: str, device: int) -> BinderfsRoot:
        try:
            root = self._host.lstat(directory)
            control = self._host.lstat(posixpath.join(directory, CONTROL_NAME))
        except OSError:
            return _NO_BINDERFS
        if not root.st_dev == control.st_dev == device:
            return _NO_BINDERFS
        return BinderfsRoot(directory, control.st_mtime_ns, control.st_ino)


def kind_of(status: os.stat_result, driver: Driver) -> Kind:
    """Return the kind of a file according to its type, file system and device number. Its name does not matter."""
    file_type = stat.S_IFMT(status.st_mode)
    if file_type != stat.S_IFCHR:
        return Kind.FILE if file_type == stat.S_IFREG else Kind.OTHER
    if status.st_dev in driver.file_systems:
        return Kind.BINDERFS
    return Kind.CDEV if driver.owns(status.st_rdev) else Kind.STAND_IN
