"""The search for files of the host by path or pattern, and the changes of files that would change its result."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.binder.discovery.patterns import is_pattern, matches, parts
from aosp_plugin.binder.errors import NotRespondingError

if TYPE_CHECKING:
    from collections.abc import Collection

    from aosp_plugin.binder.driver.host import Host


class PathSearch:
    """One search. To be used in one thread.

    If a directory does not exist, its nearest existing ancestor is watched, so that nothing has to be polled.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._directories: set[str] = set()
        self._files: set[str] = set()
        self._parts: dict[str, set[str]] = {}
        self._watched: set[str] = set()
        """All that ``directories`` has returned, and may return."""

    def find(self, path: str) -> list[str]:
        """Return a path, which may not exist, or the files that match a pattern, in natural order.

        Raises NotRespondingError, and OSError if links lead in a circle.
        """
        found = [""]
        for part in parts(path):
            if is_pattern(part):
                found = [f"{parent}/{name}" for parent in found for name in self._list(parent or "/", part)]
            else:
                found = [f"{parent}/{part}" for parent in found]
        return found

    def status(self, path: str) -> os.stat_result:
        """Return the status of a file, links followed. Raises OSError and NotRespondingError."""
        resolved = self._follow(path)
        self._depend_on(resolved)
        return self._host.lstat(resolved)

    def affected(self, changed: Collection[str]) -> bool:
        """Return whether a change of these files, as paths of this process, may change the result of this search."""
        if not (self._files | self._watched).isdisjoint(changed):  # a directory that changed may be another one by now
            return True
        split = map(os.path.split, changed) if self._parts else ()
        return any(matches(part, name) for directory, name in split for part in self._parts.get(directory, ()))

    def directories(self) -> frozenset[str]:
        """Return the directories to watch, as paths of this process, without those that may hang.

        Where a file system may hang, links are followed each time: a directory may have been replaced by a link to it.
        """
        if not self._host.guarded:
            return frozenset(map(self._host.process_path, self._directories))
        watched = set()
        for directory in self._directories:
            try:
                path = self._host.process_path(self._host.resolve(directory))
            except (NotRespondingError, OSError):
                continue
            if not self._host.may_hang(path):
                watched.add(path)
        self._watched |= watched
        return frozenset(watched)

    def _list(self, directory: str, part: str) -> list[str]:
        """Return the names in a directory that match a part of a pattern; none if there is no such directory."""
        resolved = self._follow(directory)
        try:
            names = self._host.listdir(resolved)
        except OSError:
            self._depend_on(resolved)
            return []
        self._watch(resolved)
        self._parts.setdefault(self._host.process_path(resolved), set()).add(part)
        return natural_sort([name for name in names if matches(part, name)])

    def _follow(self, path: str) -> str:
        """Follow the links in a path, on which the result depends."""
        links: set[str] = set()
        try:
            return self._host.resolve(path, links)
        finally:
            for link in links:
                self._add(link)

    def _depend_on(self, path: str) -> None:
        """Record that the result depends on the file at ``path``, which has no links, or on its ancestors."""
        while (parent := os.path.dirname(path)) != "/" and not self._is_directory(parent):
            path = parent
        self._add(path)

    def _is_directory(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(self._host.lstat(path).st_mode)
        except NotRespondingError:
            return True
        except OSError:
            return False

    def _watch(self, directory: str) -> None:
        self._directories.add(directory)
        self._watched.add(self._host.process_path(directory))

    def _add(self, path: str) -> None:
        self._watch(os.path.dirname(path))
        self._files.add(self._host.process_path(path))
