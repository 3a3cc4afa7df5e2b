"""One look at the host: which nodes are there.

What is found is neither judged (``health``) nor remembered (``health.follow``) here.
"""

from __future__ import annotations

import posixpath
import stat
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aosp_plugin.binder.nodes import CONTROL_NAME, Identity, Kind, Node, name_problem, natural_key

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from aosp_plugin.binder.host import Driver


class Files(Protocol):
    """What the scanner needs of a host; ``host.Host`` is the real one."""

    def names(self, directory: str) -> list[str]:
        """List a directory. Raises OSError."""

    def lstat(self, path: str) -> os.stat_result:
        """Look at a file. Raises OSError."""

    def resolve(self, path: str) -> str:
        """Follow every link in a path. Raises OSError."""


class Scan(NamedTuple):
    """What one look found."""

    nodes: tuple[Node, ...]
    """In natural order."""
    skipped: Mapping[str, str]
    """Names that begin with the prefix and can't be devices, with the reason."""
    directories: frozenset[str]
    """Where a change of files would change the result: the device directory and those that links lead to."""


def scan(files: Files, driver: Driver, directory: str, prefix: str) -> Scan:
    """Find what begins with ``prefix`` in ``directory``, but for directories. Raises OSError."""
    names, skipped = usable_names(files.names(directory), prefix)
    look = Look(files, driver, directory)
    nodes = [node for name in names if (node := look.at(name))]
    nodes.sort(key=lambda node: natural_key(node.name))
    return Scan(tuple(nodes), skipped, frozenset({directory, *look.targets}))


def usable_names(names: list[str], prefix: str) -> tuple[list[str], dict[str, str]]:
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


class Look:
    """Looks at nodes one by one, and keeps what they have in common: the driver and the directories."""

    def __init__(self, files: Files, driver: Driver, directory: str) -> None:
        self._files = files
        self._driver = driver
        self._directory = directory
        self._real_directory = files.resolve(directory)
        self._binderfs: dict[tuple[str, int], Binderfs] = {}
        self.targets: set[str] = set()

    def at(self, name: str) -> Node | None:
        """Look at one node; None where the name is a directory's, or gone since the directory was listed."""
        path = posixpath.join(self._directory, name)
        real = posixpath.join(self._real_directory, name)
        try:
            seen = self._files.lstat(real)
        except OSError:
            return None
        if stat.S_ISLNK(seen.st_mode):
            return self._through_link(name, path, real)
        if stat.S_ISDIR(seen.st_mode):
            return None
        return self._node(name, path, self._real_directory, seen)

    def _through_link(self, name: str, path: str, real: str) -> Node | None:
        try:
            target = self._files.resolve(real)
            directory = target.rpartition("/")[0] or "/"
            self.targets.add(directory)
            seen = self._files.lstat(target)
        except OSError:
            return Node(name, path, Kind.ABSENT)
        if stat.S_ISDIR(seen.st_mode):
            return None
        return self._node(name, path, directory, seen)

    def _node(self, name: str, path: str, directory: str, seen: os.stat_result) -> Node:
        kind = kind_of(seen, self._driver)
        binderfs = self._binderfs_at(directory, seen.st_dev) if kind is Kind.BINDERFS else Binderfs()
        if binderfs.control == seen.st_ino:
            kind = Kind.OTHER  # a link to binder-control, which makes nodes and is none
        identity = Identity(seen.st_dev, seen.st_rdev, seen.st_ino, binderfs.since)
        return Node(name, path, kind, identity, binderfs.directory)

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
            return Binderfs()
        if not root.st_dev == control.st_dev == device:
            return Binderfs()
        return Binderfs(directory, control.st_mtime_ns, control.st_ino)


def kind_of(seen: os.stat_result, driver: Driver) -> Kind:
    """Tell the kind from the file's type, its file system and its device number; never from its name."""
    if stat.S_ISREG(seen.st_mode):
        return Kind.FILE
    if not stat.S_ISCHR(seen.st_mode):
        return Kind.OTHER
    if seen.st_dev in driver.file_systems:
        return Kind.BINDERFS
    return Kind.CDEV if driver.owns(seen.st_rdev) else Kind.STAND_IN
