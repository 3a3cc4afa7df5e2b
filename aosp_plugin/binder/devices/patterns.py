"""Patterns of paths, such as /dev/dri/renderD*, and the search for the files of the host that match one.

The wildcards ``*``, ``?`` and ``[...]`` stand for characters of one part of a path, as in a shell: they match no slash,
and no dot at the beginning of a part.
"""

import os
import re
import stat
from fnmatch import fnmatchcase

from aosp_plugin.binder.devices.sets import natural_sort
from aosp_plugin.binder.driver.host import TRANSIENT_ERRORS, Host

_WILDCARD = re.compile(r"[*?[]")


def is_pattern(path: str) -> bool:
    """Return whether a path, or a part of it, has wildcards."""
    return _WILDCARD.search(path) is not None


def matches(part: str, name: str) -> bool:
    """Return whether a file name matches a part of a pattern."""
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


def may_overlap(first: str, second: str) -> bool:
    """Return whether two normalised paths are the same, or one contains the other, for any match of a pattern.

    Two different patterns overlap if one of them matches the text of the other one.
    """
    pairs = zip(parts(first), parts(second), strict=False)
    return all(a == b or fnmatchcase(a, b) or fnmatchcase(b, a) for a, b in pairs)


def parts(path: str) -> list[str]:
    """Return the parts of a path between its slashes."""
    return [part for part in path.split("/") if part]


class PathSearch:
    """A search for files, and the directories in which a change may change its result. To be used in one thread.

    If a directory does not exist, its nearest existing ancestor is watched, so that nothing has to be polled.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.directories: set[str] = set()
        """The directories to watch, as paths of this process."""
        self._followed: dict[str, str] = {}
        """The paths of directories without links, by their paths."""

    def find(self, path: str) -> list[str]:
        """Return the files that match a pattern, in natural order, or a path itself, even if it does not exist.

        Raises OSError if links lead in a circle, or if descriptors or memory are exhausted.
        """
        found = [""]
        for part in parts(path):
            if is_pattern(part):
                found = [f"{parent}/{name}" for parent in found for name in self._list(parent or "/", part)]
            else:
                found = [f"{parent}/{part}" for parent in found]
        return found

    def status(self, path: str) -> os.stat_result:
        """Return the status of a file, links followed. Raises OSError."""
        directory, _, name = path.rpartition("/")
        if directory not in self._followed:  # once, or thousands of devices would take most of a scan
            self._followed[directory] = self._follow(directory).rstrip("/")
            self._watch_for(f"{self._followed[directory]}/{name}")
        status = self._host.lstat(f"{self._followed[directory]}/{name}")
        if stat.S_ISLNK(status.st_mode):
            resolved = self._follow(path)
            self._watch_for(resolved)
            status = self._host.lstat(resolved)
        return status

    def _list(self, directory: str, part: str) -> list[str]:
        """Return the names in a directory that match a part of a pattern; none if it does not exist or is unreadable.

        Raises OSError if descriptors or memory are exhausted: containers would start without what is there.
        """
        resolved = self._follow(directory)
        try:
            names = self._host.listdir(resolved)
        except OSError as error:
            if error.errno in TRANSIENT_ERRORS:
                raise
            self._watch_for(resolved)
            return []
        self.directories.add(self._host.process_path(resolved))
        return natural_sort([name for name in names if matches(part, name)])

    def _follow(self, path: str) -> str:
        """Follow the links in a path, on which the result depends."""
        links: set[str] = set()
        try:
            return self._host.resolve(path, links)
        finally:
            self.directories.update(self._host.process_path(os.path.dirname(link)) for link in links)

    def _watch_for(self, path: str) -> None:
        """Watch the directory of the file at ``path``, which has no links, or its nearest existing ancestor."""
        directory = os.path.dirname(path)
        while directory != "/" and not self._is_directory(directory):
            directory = os.path.dirname(directory)
        self.directories.add(self._host.process_path(directory))

    def _is_directory(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(self._host.lstat(path).st_mode)
        except OSError:
            return False
