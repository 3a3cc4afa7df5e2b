"""The mount points of this process, and which of them changed: /proc/self/mountinfo (proc_pid_mountinfo(5)).

Reading it accesses no mounted file system, so that it never hangs.
"""

from __future__ import annotations

import os
import re
import select

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
        """The mount point of each line."""

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
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        if text == self._text:
            return frozenset()
        old = self._points
        # A path may contain other line separators. Only new lines are parsed: a host has thousands.
        self._points = {line: old.get(line) or _mount_point(line) for line in text.rstrip("\n").split("\n")}
        self._text = text
        return frozenset(
            [old[line] for line in old.keys() - self._points.keys()]
            + [self._points[line] for line in self._points.keys() - old.keys()]
        )

    def points(self) -> frozenset[str]:
        """Return all mount points as of the last call of ``changes``."""
        return frozenset(self._points.values())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._poll.unregister(self._file)
            os.close(self._file)
            self._file = None


def _mount_point(line: str) -> str:
    point = line.split(" ", 5)[4]
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), point) if "\\" in point else point
