"""An inotify instance for any number of directories, whose events only say that something has changed."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
from collections.abc import Callable, Collection

from aosp_plugin.framework.aio import call_in_loop

# include/uapi/linux/inotify.h
_IN_MOVE, _IN_CREATE, _IN_DELETE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0xC0, 0x100, 0x200, 0x400, 0x800
_IN_IGNORED, _IN_ONLYDIR = 0x8000, 0x01000000
_MASK = _IN_MOVE | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR
"""Without IN_OPEN and IN_CLOSE, because every container and every probe causes them."""

_HEADER = struct.Struct("iIII")
_BUFFER = 64 * 1024
_LIMITS = {errno.EMFILE: "inotify instance limit reached", errno.ENOSPC: "inotify watch limit reached"}
_LIBC = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """An inotify instance. The event loop reads its events; the methods are to be used in one thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, notify: Callable[[], None]) -> None:
        """``notify`` is called in the event loop after each change, and after the loss of events.

        Raises OSError if the host's limit of instances, or the process's of files, is reached.
        """
        self._loop = loop
        self._notify = notify
        self._watches: frozenset[int] = frozenset()
        self._descriptor = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        call_in_loop(loop, loop.add_reader, self._descriptor, self._read)

    def watch(self, path: str) -> int:
        """Watch which files are created, deleted or moved in a directory; return the number of the watch.

        It is the same as before only if the path leads to the same directory, and its watch has not ended. Raises
        OSError if that is not possible. Hangs with the file system; events are reported nevertheless.
        """
        return _checked(_LIBC.inotify_add_watch(self._descriptor, os.fsencode(path), _MASK), path)

    def keep(self, watches: Collection[int]) -> None:
        """End all watches but these."""
        for watch in self._watches.difference(watches):
            _LIBC.inotify_rm_watch(self._descriptor, watch)  # EINVAL if it has ended with its directory
        self._watches = frozenset(watches)

    def close(self) -> None:
        """End all watches, soon."""
        call_in_loop(self._loop, self._close)

    def _close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _read(self) -> None:
        events = os.read(self._descriptor, _BUFFER)
        while events and _HEADER.unpack_from(events)[1] == _IN_IGNORED:  # the end of a watch, after its cause
            events = events[_HEADER.size :]
        if events:
            self._notify()


def _checked(result: int, path: str | None = None) -> int:
    """Return the result of a system call. Raises OSError."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, _LIMITS.get(code, os.strerror(code)), path)
    return result
