"""One look at the host: which nodes are there.

What is found is neither judged (``health``) nor remembered (``health.follow``) here.
"""

from __future__ import annotations

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

    def driver(self) -> Driver:
        """Say what belongs to binder."""


class Scan(NamedTuple):
    """What one look found."""

    nodes: tuple[Node, ...]
    """In natural order."""
    skipped: Mapping[str, str]
    """Names that begin with the prefix and can't be devices, with the reason."""
    directories: frozenset[str]
    """Where a change of files would change the result: the device directory and those that links lead to."""


def scan(files: Files, directory: str, prefix: str) -> Scan:
    """Find what begins with ``prefix`` in ``directory``, but for directories. Raises OSError."""
    names, skipped = usable_names(files.names(directory), prefix)
    look = Look(files, directory)
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


class Look:
    """Looks at nodes one by one, and keeps what they have in common: the driver and the directories."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._real_directory = files.resolve(directory)
        self._driver = files.driver()
        self._binderfs: dict[tuple[str, int], str] = {}
        self.targets: set[str] = set()

    def at(self, name: str) -> Node | None:
        """Look at one node; None where the name is a directory's, or gone since the directory was listed."""
        path = f"{self._directory}/{name}"
        real = f"{self._real_directory}/{name}"
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
        identity = Identity(seen.st_dev, seen.st_rdev, seen.st_ino)
        kind = kind_of(seen.st_mode, identity, self._driver)
        shared = self._binderfs_at(directory, seen.st_dev) if kind is Kind.BINDERFS else ""
        return Node(name, path, kind, identity, shared)

    def _binderfs_at(self, directory: str, device: int) -> str:
        """Return ``directory`` if it is itself on the node's file system.

        It is not where the single node was bind-mounted into /dev: and then no container may be shown /dev.
        """
        key = (directory, device)
        if key not in self._binderfs:
            try:
                same = self._files.lstat(directory).st_dev == device
            except OSError:
                same = False
            self._binderfs[key] = directory if same else ""
        return self._binderfs[key]


def kind_of(mode: int, identity: Identity, driver: Driver) -> Kind:
    """Tell the kind from the file's type, its file system and its device number; never from its name."""
    if stat.S_ISREG(mode):
        return Kind.FILE
    if not stat.S_ISCHR(mode):
        return Kind.OTHER
    if identity.device in driver.file_systems:
        return Kind.BINDERFS
    return Kind.CDEV if driver.owns(identity.number) else Kind.STAND_IN
