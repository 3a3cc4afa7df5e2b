"""The mount points of this process, and which of them changed: /proc/self/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from aosp_plugin.framework.events.watched_directories import parent

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

MOUNTINFO = "/proc/self/mountinfo"

_OCTAL = re.compile(r"\\([0-7]{3})")


class MountTable:
    """Compares each text of the table with the previous one. To be used in one thread, except ``binds_in``."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.known = False
        """Whether there is a previous text."""
        self._points: dict[str, str] = {}
        """The mount point of each line."""
        self._lock = threading.Lock()  # for the next one
        self._directories: dict[str, dict[str, str]] = {}
        """The same for the mount points of binds in each directory."""

    def changes(self, text: str) -> frozenset[str] | None:
        """Return the mount points that appeared, vanished or changed since the last call; None if that is unknown.

        A line has the ID of the mount and of its parent, the device, and the mounted directory of its file system. A
        file system that is mounted again in between may have the same line, because the kernel reuses these numbers.
        The watch of a directory in it has then ended. If the table changes while it is read, lines may be missing, or
        be there twice; the kernel then reports another change.
        """
        lines = set(text.split("\n")[:-1])  # a path may contain other line separators
        gone = [(line, self._points.pop(line)) for line in self._points.keys() - lines]
        added = [(line, _mount_point(line)) for line in lines - self._points.keys()]
        self._points.update(added)
        with self._lock:
            for line, point in filter(_is_bind, gone):
                points = self._directories[parent(point)]
                del points[line]
                if not points:
                    del self._directories[parent(point)]
            for line, point in filter(_is_bind, added):
                self._directories.setdefault(parent(point), {})[line] = point
        known, self.known = self.known, True
        return frozenset(point for _, point in (*gone, *added)) if known else None

    def forget(self) -> None:
        """Forget the previous text."""
        with self._lock:
            self._directories = {}
        self._points = {}
        self.known = False

    def binds_in(self, directories: AbstractSet[str]) -> set[str]:
        """Return the mount points of binds in directories, as of the last call of ``changes``. For any thread.

        A bind mounts a file or a directory of a file system, and not all of it.
        """
        with self._lock:
            found = self._directories.keys() & directories
            return {point for directory in found for point in self._directories[directory].values()}


def _is_bind(mounted: tuple[str, str]) -> bool:
    """Return whether a line, which is given with its mount point, is that of a bind."""
    return mounted[0].split(" ", 4)[3] != "/"


def _mount_point(line: str) -> str:
    point = line.split(" ", 5)[4]
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), point) if "\\" in point else point
