"""The directories that one subscription watches, and which of them a change concerns."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from aosp_plugin.framework.events.inotify import DirectoryWatch


class WatchedDirectories:
    """Directories with their watches. To be used in one thread.

    A path may come to lead to another directory than the watched one. If a directory is in another watched directory,
    that requires an event there, or a change of the mount at its path: only then it is checked, because there are
    thousands of them, one for each phone, and each check is a system call. All others are *exposed*, and checked each
    time: a directory above them, or a link on the path, may be replaced without an event.
    """

    def __init__(self, start: Callable[[str], DirectoryWatch | None]) -> None:
        """``start`` starts a watch, and returns None if that is not possible now."""
        self._start = start
        self.watches: dict[str, DirectoryWatch] = {}
        self._real: set[str] = set()
        """Watched paths without links, according to a check before the start of the watch."""
        self._exposed: frozenset[str] = frozenset()
        self._above: frozenset[str] = frozenset()
        """Each directory that has a watched one below it."""
        self._requested: frozenset[str] = frozenset()

    @property
    def have_links(self) -> bool:
        """Whether the path of a watched directory has links, so that mount points in it have other paths."""
        return len(self._real) < len(self.watches)

    @property
    def are_complete(self) -> bool:
        """Whether all directories that were requested are watched."""
        return len(self._requested) == len(self.watches)

    def is_above(self, path: str) -> bool:
        """Return whether a watched directory is below ``path``."""
        return path in self._above

    def has(self, path: str) -> bool:
        """Return whether ``path`` is a file in a watched directory."""
        return parent(path) in self.watches

    def concerns(self, point: str) -> bool:
        """Return whether a mount at ``point`` changes what is in a watched directory, or which one is watched."""
        return point in self.watches or self.has(point) or self.is_above(point)

    def replace(self, directories: Collection[str], suspects: Iterable[str], *, check_all: bool) -> dict[str, bool]:
        """Watch these directories, and no others.

        ``suspects`` were replaced, unmounted or mounted over if they are watched. Returns those directories whose watch
        is new, or not possible now, each with whether it is watched.
        """
        before, requested = set(self.watches), frozenset(directories)
        self._requested = requested
        kept = before & requested  # a directory that is not requested any more may hang
        replaced = kept.intersection(suspects) | self._stale(kept if check_all else kept & self._exposed)
        if not check_all and not replaced.isdisjoint(self._exposed):
            replaced |= self._stale(kept)  # they may be below a directory that was moved
        if not replaced and before == requested:
            return {}
        for path in (before - requested) | replaced:
            self._stop(path)
        # Parents come first: a directory in a watched one is checked less often.
        new = {path: self._add(path) for path in sorted(requested - self.watches.keys())}
        if self.watches.keys() == before:
            self._exposed |= {path for path in new if path in self.watches and self._is_exposed(path)}
        else:
            self._exposed = frozenset(filter(self._is_exposed, self.watches))
            self._above = frozenset(_above(self.watches))
        if any(map(self.is_above, new)):  # what is in them may have been replaced before the watch reported it
            for path in self._stale([path for path in self.watches if os.path.dirname(path) in new]):
                self._stop(path)
                new[path] = self._add(path)
        return new

    def stop(self) -> None:
        """End all watches."""
        watches, self.watches = self.watches, {}
        for watch in watches.values():
            watch.stop()

    def _stale(self, paths: Iterable[str]) -> set[str]:
        return {path for path in paths if self.watches[path].stale()}

    def _stop(self, path: str) -> None:
        self.watches.pop(path).stop()
        self._real.discard(path)

    def _add(self, path: str) -> bool:
        if os.path.dirname(path) in self._real:
            real = os.path.normpath(path) == path and not os.path.islink(path)
        else:
            real = os.path.realpath(path) == path
        watch = self._start(path)
        if watch is None:
            return False
        self.watches[path] = watch
        if real:
            self._real.add(path)
        return True

    def _is_exposed(self, path: str) -> bool:
        above = os.path.dirname(path)
        return path not in self._real or above not in self._real or above == path


def parent(path: str) -> str:
    """Return the directory that the file at an absolute path is in."""
    return path.rpartition("/")[0] or "/"


def _above(paths: Iterable[str]) -> set[str]:
    above: set[str] = set()
    for path in paths:
        below, directory = path, os.path.dirname(path)
        while directory not in above and directory != below:
            above.add(directory)
            below, directory = directory, os.path.dirname(directory)
    return above
