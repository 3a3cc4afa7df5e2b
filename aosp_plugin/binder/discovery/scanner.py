"""One look at the host: which nodes are there.

What is found is neither judged (``health``) nor remembered (``health.follow``) here.
"""

from __future__ import annotations

import posixpath
import stat
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aosp_plugin.binder.discovery.binder_device import BinderDevice, Identity, Kind
from aosp_plugin.binder.discovery.names import name_problem, natural_sort
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from aosp_plugin.binder.devices.sets import Named
    from aosp_plugin.binder.driver.host import Driver


class Files(Protocol):
    """What the scanner needs of a host; ``host.Host`` is the real one."""

    def listdir(self, directory: str) -> list[str]:
        """List a directory. Raises OSError."""

    def lstat(self, path: str) -> os.stat_result:
        """Look at a file. Raises OSError."""

    def resolve(self, path: str, links: set[str] | None = None) -> str:
        """Follow every link in a path; ``links`` gets their paths. Raises OSError."""


class Scan(NamedTuple):
    """What one look found."""

    nodes: tuple[BinderDevice, ...]
    """In natural order."""
    skipped: Mapping[str, str]
    """Names that were asked for and can't be devices, with the reason."""
    directories: frozenset[str]
    """Where a change of files would change the result: the device directory, those of sets in it, those that links
    lead to, and those in which the links on the way there stand."""
    links: Mapping[str, Sequence[str]] = {}
    """The names of those nodes that are links, by the file that they lead to, whether that is there or not, and by each
    further link on the way there."""


def scan(files: Files, driver: Driver, directory: str, prefix: str) -> Scan:
    """Find what begins with ``prefix`` in ``directory``, but for directories. Raises OSError."""
    names, skipped = usable_names(files.listdir(directory), prefix)
    look = Look(files, driver, directory)
    return Scan(look.at_all(names), skipped, frozenset({directory, *look.targets}), look.links)


def scan_named(files: Files, driver: Driver, directory: str, layout: Named) -> Scan:
    """Find the nodes of ``layout`` in ``directory``, or in the directories of sets there. Raises OSError.

    Every directory that could be a set's is one to watch, as its nodes may come later. It may be a binderfs of its
    own, a link, or gone since ``directory`` was listed.
    """
    look = Look(files, driver, directory)
    directories = {directory}
    entries = files.listdir(directory)
    if layout.nested:
        entries = [entry for entry in entries if layout.set_at(entry) and look.real_directory(entry) is not None]
    names, skipped = usable_of_sets(entries, layout)
    if layout.nested:
        directories |= {posixpath.join(directory, entry) for entry in names}
        names = [f"{entry}/{file}" for entry in names for file in layout.files]
    return Scan(look.at_all(names), skipped, frozenset(directories | look.targets), look.links)


def usable_of_sets(entries: Iterable[str], layout: Named) -> tuple[list[str], dict[str, str]]:
    """Split those files of the device directory that are a set's, or hold one, into those with a usable ID and others.

    Returns the former, and the latter with why not.
    """
    usable: list[str] = []
    skipped: dict[str, str] = {}
    for entry in entries:
        device_id = layout.set_at(entry)
        if device_id is None or entry == CONTROL_NAME:
            continue
        problem = name_problem(device_id)
        if problem is None:
            usable.append(entry)
        else:
            skipped[entry] = problem
    return usable, skipped


def usable_names(names: Iterable[str], prefix: str) -> tuple[list[str], dict[str, str]]:
    """Split the names that begin with ``prefix`` into those that can be devices, and the others with why not."""
    usable: list[str] = []
    skipped: dict[str, str] = {}
    for name in names:
        if not name.startswith(prefix) or name == CONTROL_NAME:
            continue
        problem = name_problem(name)
        if problem is None:
            usable.append(name)
        else:
            skipped[name] = problem
    return usable, skipped


class Binderfs(NamedTuple):
    """What a node needs to know of the directory that it is in."""

    directory: str = ""
    """Empty where the directory is not itself a binderfs."""
    since: int = 0
    """The mtime of its binder-control in nanoseconds: set when it is mounted (drivers/android/binderfs.c
    ``binderfs_binder_ctl_create``), and never after, as nobody writes to that file."""
    control: int = 0
    """The inode of its binder-control."""


_NO_BINDERFS = Binderfs()


class Look:
    """Looks at nodes one by one, and keeps what they have in common: the driver and the directories."""

    def __init__(self, files: Files, driver: Driver, directory: str) -> None:
        self._files = files
        self._driver = driver
        self._directory = directory
        self._path_before = directory.rstrip("/") + "/"
        on_the_way: set[str] = set()
        self._real_directory = files.resolve(directory, on_the_way)
        self._real_path_before = self._real_directory.rstrip("/") + "/"
        self._real_directories: dict[str, str | None] = {}
        self._binderfs: dict[tuple[str, int], Binderfs] = {}
        self._numbers: dict[int, int] = {}  # each is kept once, rather than once a node
        self.targets: set[str] = {*map(posixpath.dirname, on_the_way)}
        self.links: dict[str, list[str]] = {}

    def at_all(self, names: Iterable[str]) -> tuple[BinderDevice, ...]:
        """Look at nodes, and return those that are there in natural order."""
        return tuple([node for name in natural_sort(list(names)) if (node := self.at(name))])

    def at(self, name: str) -> BinderDevice | None:
        """Look at one node; None where the name is a directory's, or gone since the directory was listed.

        A node in a directory of its set is called phone7/binder.
        """
        directory = self._real_directory
        real = self._real_path_before + name
        if "/" in name:
            entry, _, file = name.rpartition("/")
            of_set = self.real_directory(entry)
            if of_set is None:
                return None
            directory, real = of_set, posixpath.join(of_set, file)
        try:
            seen = self._files.lstat(real)
        except OSError:
            return None
        path = self._path_before + name
        if stat.S_ISLNK(seen.st_mode):
            return self._through_link(name, path, real)
        if stat.S_ISDIR(seen.st_mode):
            return None
        return self._node(name, path, directory, seen)

    def real_directory(self, entry: str) -> str | None:
        """Return the path, free of links, of a directory in the device directory; None where ``entry`` is none."""
        if entry not in self._real_directories:
            self._real_directories[entry] = self._look_at_directory(entry)
        return self._real_directories[entry]

    def _look_at_directory(self, entry: str) -> str | None:
        real = posixpath.join(self._real_directory, entry)
        try:
            seen = self._files.lstat(real)
            if not stat.S_ISLNK(seen.st_mode):
                return real if stat.S_ISDIR(seen.st_mode) else None
            target = self._files.resolve(real)
        except OSError:
            return None
        try:
            seen = self._files.lstat(target)
        except OSError:
            self.targets.add(posixpath.dirname(target))  # where it will appear
            return None
        return target if stat.S_ISDIR(seen.st_mode) else None

    def _through_link(self, name: str, path: str, real: str) -> BinderDevice | None:
        on_the_way: set[str] = set()
        try:
            target = self._files.resolve(real, on_the_way)
            on_the_way.add(target)
            directory = target.rpartition("/")[0] or "/"
            seen = self._files.lstat(target)
        except OSError:
            return BinderDevice(name, path, Kind.ABSENT)
        finally:
            self._watch(on_the_way - {real}, name)
        if stat.S_ISDIR(seen.st_mode):
            return None
        return self._node(name, path, directory, seen)

    def _watch(self, files: set[str], name: str) -> None:
        """Note that a node is what it is through these files."""
        for file in files:
            self.targets.add(posixpath.dirname(file))
            self.links.setdefault(file, []).append(name)

    def _node(self, name: str, path: str, directory: str, seen: os.stat_result) -> BinderDevice:
        kind = kind_of(seen, self._driver)
        binderfs = self._binderfs_at(directory, seen.st_dev) if kind is Kind.BINDERFS else _NO_BINDERFS
        if binderfs.control == seen.st_ino:
            kind = Kind.OTHER  # a link to binder-control, which makes nodes and is none
        shared = self._numbers.setdefault
        device, number = shared(seen.st_dev, seen.st_dev), shared(seen.st_rdev, seen.st_rdev)
        identity = Identity(device, number, seen.st_ino, binderfs.since)
        return BinderDevice(name, path, kind, identity, binderfs.directory)

    def _binderfs_at(self, directory: str, device: int) -> Binderfs:
        """Look at the binderfs that ``directory`` is.

        It is none where the single node was bind-mounted into /dev: and then no container may be shown /dev.
        """
        key = (directory, device)
        if key not in self._binderfs:
            self._binderfs[key] = self._look_at_binderfs(directory, device)
        return self._binderfs[key]

    def _look_at_binderfs(self, directory: str, device: int) -> Binderfs:
        try:
            root = self._files.lstat(directory)
            control = self._files.lstat(posixpath.join(directory, CONTROL_NAME))
        except OSError:
            return _NO_BINDERFS
        if not root.st_dev == control.st_dev == device:
            return _NO_BINDERFS
        return Binderfs(directory, control.st_mtime_ns, control.st_ino)


def kind_of(seen: os.stat_result, driver: Driver) -> Kind:
    """Tell the kind from the file's type, its file system and its device number; never from its name."""
    file_type = stat.S_IFMT(seen.st_mode)
    if file_type != stat.S_IFCHR:
        return Kind.FILE if file_type == stat.S_IFREG else Kind.OTHER
    if seen.st_dev in driver.file_systems:
        return Kind.BINDERFS
    return Kind.CDEV if driver.owns(seen.st_rdev) else Kind.STAND_IN
