"""A scan of the host: which binder devices exist.

``health`` evaluates the result, ``store`` remembers it.
"""

from __future__ import annotations

import posixpath
import stat
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import BinderDevice, Identity, Kind
from aosp_plugin.binder.discovery.names import name_problem, natural_sort
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.binder.errors import NotRespondingError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from aosp_plugin.binder.devices.sets import Layout
    from aosp_plugin.binder.driver.host import Driver, Host


class Scan(NamedTuple):
    """The result of a scan."""

    devices: tuple[BinderDevice, ...]
    """In natural order of their names."""
    skipped: Mapping[str, str]
    """Files that belong to the resource but are not usable, with the reason."""
    directories: frozenset[str]
    """Directories to watch, besides ``sets``: the device directory, the directories of sets that are links, and all
    directories that contain a link on the path to a binder device or to the directory of a set, or its target."""
    links: Mapping[str, Sequence[str]] = {}
    """For each target of a link, which need not exist, and each further link on the path to it: the names of the binder
    devices that depend on it."""
    sets: frozenset[str] = frozenset()
    """Names of the directories of sets in the device directory, to be watched as well. Those that are links are in
    ``directories``."""
    set_links: Mapping[str, Sequence[str]] = {}
    """Like ``links``, for links on the path to the directory of a set: the names of such directories."""
    may_hang: frozenset[str] = frozenset()
    """Names of the binder devices that depend on a file system that may hang, and the possible names in such sets."""


def scan(host: Host, driver: Driver, directory: str, layout: Layout) -> Scan:
    """Scan ``directory`` for the binder devices of ``layout``. Raises OSError if it cannot be listed.

    A binder device whose file system is not responding has the kind TIMED_OUT.

    In a nested layout, each directory that may be a set's is to be watched, because devices may be added to it later.
    It may be a binderfs of its own, a link, or removed since ``directory`` was listed.
    """
    reader = DeviceReader(host, driver, directory)
    usable, skipped = usable_entries(host.listdir(directory), layout)
    if layout.nested:
        usable = [entry for entry in usable if reader.may_be_directory(entry)]
        skipped = directories_among(skipped, DeviceReader(host, driver, directory)) if skipped else {}
    devices = reader.read_all([name for entry in usable for name in layout.names_in(entry)])
    return Scan(
        devices,
        skipped,
        frozenset({directory, *reader.targets}),
        reader.links,
        frozenset(reader.sets),
        reader.set_links,
        frozenset(reader.may_hang),
    )


def usable_entries(entries: Iterable[str], layout: Layout) -> tuple[list[str], dict[str, str]]:
    """Return the file names of the device directory that ``layout`` uses, and why it skips others.

    A file is skipped if it belongs to a set but its ID would be invalid. The second result has the reason by name.
    """
    usable: list[str] = []
    skipped: dict[str, str] = {}
    for entry in entries:
        device_id = layout.id_part(entry)
        if device_id is None or entry == CONTROL_NAME:
            continue
        problem = name_problem(device_id)
        if problem is None:
            usable.append(entry)
        else:
            skipped[entry] = problem
    return usable, skipped


def directories_among(skipped: Mapping[str, str], reader: DeviceReader) -> dict[str, str]:
    """Return those of the files that are skipped which are directories, because no other file belongs to a set."""
    return {entry: problem for entry, problem in skipped.items() if reader.may_be_directory(entry)}


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
        self._numbers: dict[int, int] = {}
        """The numbers of identities, each object once for all devices that share it."""
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

    def read_all(self, names: Iterable[str]) -> tuple[BinderDevice, ...]:
        """Read these binder devices, in natural order. Skips those that ``read`` does not find."""
        return tuple([device for name in natural_sort([*names]) if (device := self.read(name)) is not None])

    def read(self, name: str) -> BinderDevice | None:
        """Read one binder device. None if there is no such file, or a directory in its place.

        In a nested layout, the name has the form phone7/binder.
        """
        try:
            return self._read(name)
        except NotRespondingError:
            self.may_hang.add(name)
            return BinderDevice(name, self._path_prefix + name, Kind.TIMED_OUT)

    def _read(self, name: str) -> BinderDevice | None:
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
        path = self._path_prefix + name
        if stat.S_ISLNK(status.st_mode):
            return self._read_link(name, path, real_path)
        if stat.S_ISDIR(status.st_mode):
            return None
        return self._device(name, path, directory, status)

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

    def _read_link(self, name: str, path: str, real_path: str) -> BinderDevice | None:
        depends_on: set[str] = set()
        try:
            target = self._host.resolve(real_path, depends_on)
            depends_on.add(target)
            directory = target.rpartition("/")[0] or "/"
            status = self._host.lstat(target)
        except OSError:
            return BinderDevice(name, path, Kind.ABSENT)
        finally:
            self._watch(depends_on - {real_path}, name)
        if stat.S_ISDIR(status.st_mode):
            return None
        return self._device(name, path, directory, status)

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

    def _device(self, name: str, path: str, directory: str, status: os.stat_result) -> BinderDevice:
        kind = kind_of(status, self._driver)
        root = self._root_of(directory, status.st_dev) if kind is Kind.BINDERFS else _NO_BINDERFS
        if root.control == status.st_ino:
            kind = Kind.OTHER  # a link to binder-control
        shared = self._numbers.setdefault
        device, number = shared(status.st_dev, status.st_dev), shared(status.st_rdev, status.st_rdev)
        return BinderDevice(name, path, kind, Identity(device, number, status.st_ino, root.since), root.directory)

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
