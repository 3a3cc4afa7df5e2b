"""The mount points of this process, and which of them changed: /proc/self/mountinfo (proc_pid_mountinfo(5)).

Reading it accesses no mounted file system, so that it never hangs.
"""

from __future__ import annotations

import os
import re
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MOUNTINFO = "/proc/self/mountinfo"

_OCTAL = re.compile(r"\\([0-7]{3})")


class MountTable:
    """Compares the mount table with that of the previous call. To be used in one thread."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._file: int | None = None
        self._poll = select.poll()
        self._text = ""
        self._points: dict[str, str] = {}
        """The mount point of each line; replaced by a single assignment."""

    def has_changed(self) -> bool:
        """Return whether any mount has changed since the last call, even if it was undone; True if that is unknown.

        See ``MountEvents``, which wakes the event loop, for how the kernel reports it.
        """
        if self._file is not None:
            return bool(self._poll.poll(0))
        try:
            self._file = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no free descriptors
            return True
        self._poll.register(self._file, select.POLLPRI)
        return True

    def changes(self) -> frozenset[str]:
        """Return the mount points that appeared, vanished or changed since the last call; at the first one, all.

        A line has the ID of the mount and of its parent, the device, and the mounted directory of its file system. A
        file system that is mounted again in between may have the same line, because the kernel reuses these numbers.
        The watch of a directory in it has then ended. Raises OSError.
        """
        old = self._points
        return _differences(old, self.read())

    def read(self) -> Mapping[str, str]:
        """Return the mount point of each line of the table as it is now. Raises OSError."""
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        if text != self._text:
            old = self._points
            # A path may contain other line separators. Only new lines are parsed: a host has thousands.
            self._points = {line: old.get(line) or _mount_point(line) for line in text.rstrip("\n").split("\n")}
            self._text = text
        return self._points

    def differences(self, lines: Mapping[str, str]) -> frozenset[str]:
        """Return the mount points that ``lines`` has, or has not, unlike the table as it was last read.

        ``lines`` are those of another object's ``read``. May be called in any thread.
        """
        return _differences(self._points, lines)

    def points(self) -> frozenset[str]:
        """Return all mount points of the table as it was last read."""
        return frozenset(self._points.values())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._poll.unregister(self._file)
            os.close(self._file)
            self._file = None


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> frozenset[str]:
    if old is new:
        return frozenset()
    gone, added = old.keys() - new.keys(), new.keys() - old.keys()
    return frozenset([old[line] for line in gone] + [new[line] for line in added])


def _mount_point(line: str) -> str:
    point = line.split(" ", 5)[4]
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), point) if "\\" in point else point
