"""Which files and directories the binder devices of one resource depend on."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.errors import NotRespondingError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from aosp_plugin.binder.devices.sets import Layout
    from aosp_plugin.binder.discovery.reader import DeviceReader
    from aosp_plugin.binder.discovery.scanner import Scan
    from aosp_plugin.binder.driver.host import Host


CTIME_STEP = 1_000_000_000
"""Nanoseconds. Two changes of a directory within one tick of the kernel's clock leave the same st_ctime."""


class Affected(NamedTuple):
    """What depends on changed files."""

    entries: set[str]
    """Files of the device directory: devices, or directories of sets with all devices in them."""
    names: set[str]
    """Further binder devices. Those in the directory of a set may be no devices of the layout."""


class Dependencies:
    """The directories to watch, and the binder devices that depend on a file. To be used in one thread at a time."""

    def __init__(self, host: Host, directory: str, layout: Layout) -> None:
        """``directory`` is the device directory. Until the first scan, nothing else is to be watched."""
        self._host = host
        self._directory = directory
        self._layout = layout
        self._directories: frozenset[str] = frozenset({directory})
        self._sets: frozenset[str] = frozenset()
        """The directories of sets that are no links, by name."""
        self._set_paths: tuple[str, frozenset[str], frozenset[str]] = ("", frozenset(), frozenset())
        """Device directory, directories of sets by name, and their paths: there are thousands."""
        self._watched: frozenset[str] | None = None
        self._links: dict[str, set[str]] = {}
        """``Scan.links``, by the path of this process."""
        self._set_links: dict[str, set[str]] = {}
        """``Scan.set_links``, by the path of this process."""
        self._parents: set[str] = set()
        """The directories of the files in these two: they may be replaced by links, or be mounted over."""
        self._lost: frozenset[str] = frozenset()
        """Directories that were replaced since the last scan, and are not watched now, so that no event reports it."""
        self._scanned_directory = ""
        self._listed: tuple[tuple[int, int, int], frozenset[str]] | None = None
        """State of the device directory when it was listed, and the names of the links in it."""

    def directories(self) -> frozenset[str]:
        """Return the directories to watch, as paths of this process, without those that may hang.

        Where a file system may hang, links are followed each time: a directory may have been replaced by a link to it.
        """
        self._host.refresh_mounts()
        if self._watched is None or self._host.guarded:
            watched = self._watchable_directories() | self._watchable_sets()
            if self._watched is not None:
                self._lost |= self._watched - watched
            self._watched = watched
        return self._watched

    def replace(self, scan: Scan) -> None:
        """Forget all, and add what a full scan has found."""
        self._scanned_directory = self._process_path(self._directory)
        self._directories, self._sets, self._watched = scan.directories, scan.sets, None
        self._links, self._set_links, self._parents, self._lost = {}, {}, set(), frozenset()
        self._add_links(scan.links, scan.set_links)

    def add(self, reader: DeviceReader, names: Iterable[str]) -> None:
        """Add what a scan of these binder devices has found. What they depended on before is kept."""
        self._add_links(reader.links, reader.set_links)
        read = {name.rpartition("/")[0] for name in names}
        sets = self._sets - read | (reader.sets & read)
        if sets != self._sets or not reader.targets <= self._directories:
            self._directories, self._sets, self._watched = self._directories | reader.targets, sets, None

    def affected(self, changed: Collection[str]) -> Affected | None:
        """Return what depends on these files (paths of this process); None if everything may."""
        directory = self._process_path(self._directory)
        if directory != self._scanned_directory or directory in changed or directory in self._lost:
            return None
        affected = Affected(set(), set())
        changed, self._lost = self._lost.union(changed), frozenset()
        for path in changed:
            parent, name = os.path.split(path)
            if parent == directory:
                affected.entries.add(name)
            affected.names.update(self._links.get(path, ()))
            if self._layout.nested:
                above, entry = os.path.split(parent)
                if above == directory:
                    affected.names.add(f"{entry}/{name}")
                affected.entries.update(self._set_links.get(path, ()))
                affected.names.update(f"{entry}/{name}" for entry in self._set_links.get(parent, ()))
        replaced = self._parents.intersection(changed)
        if replaced:
            affected.names.update(_below(replaced, self._links))
            affected.entries.update(_below(replaced, self._set_links))
        return affected

    def _add_links(self, links: Mapping[str, Sequence[str]], set_links: Mapping[str, Sequence[str]]) -> None:
        for known, found in ((self._links, links), (self._set_links, set_links)):
            for file, dependents in found.items():
                path = self._host.process_path(file)
                known.setdefault(path, set()).update(dependents)
                self._parents.add(os.path.dirname(path))

    def _watchable_directories(self) -> frozenset[str]:
        """Return the paths of ``_directories`` for this process, without those that may hang or are behind a hang."""
        paths = set()
        for directory in self._directories:
            with contextlib.suppress(NotRespondingError, OSError):  # links in a circle, since the scan
                paths.add(self._process_path(directory))
        return frozenset(path for path in paths if not self._host.may_hang(path))

    def _watchable_sets(self) -> frozenset[str]:
        """Return the paths of ``_sets`` for this process, without those that may hang or are links by now."""
        if not self._sets:
            return frozenset()
        try:
            directory = self._host.resolve(self._directory)
            sets = self._sets - (self._links_in(directory) if self._host.guarded else frozenset())
        except (NotRespondingError, OSError):
            return frozenset()
        directory = self._host.process_path(directory)
        if (directory, sets) != self._set_paths[:2]:
            prefix = f"{directory.rstrip('/')}/"
            self._set_paths = (directory, sets, frozenset([prefix + entry for entry in sets]))
        paths = self._set_paths[2]
        if not self._host.may_hang_below(directory):
            return paths
        return frozenset(path for path in paths if not self._host.may_hang(path))

    def _links_in(self, directory: str) -> frozenset[str]:
        """Return the names of the links in a directory without listing it again as long as it does not change."""
        status = self._host.lstat(directory)
        state = (status.st_dev, status.st_ino, status.st_ctime_ns)
        if self._listed is None or self._listed[0] != state:
            now = time.time_ns()
            links = self._host.linked(directory)
            self._listed = (state, links) if now - status.st_ctime_ns > CTIME_STEP else None
            return links
        return self._listed[1]

    def _process_path(self, path: str) -> str:
        return self._host.process_path(self._host.resolve(path))


def _below(directories: Collection[str], dependents: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield what depends on a file in one of the directories."""
    for file, names in dependents.items():
        if os.path.dirname(file) in directories:
            yield from names
