"""One inotify instance for the directories of all subscribers, whose events are read in the event loop.

A directory that hangs does not delay the events of others: inotify_add_watch(2) looks up the path before it takes the
lock of the instance (fs/notify/inotify/inotify_user.c ``inotify_find_inode``), and no lock of this module is held
meanwhile.

This is the only module that uses watchdog: of ``watchdog.observers.inotify_c``, which is private, the system calls and
constants. Its ``InotifyFD`` holds a lock while it adds a watch, without which its thread reports no event, and its
Observer delays the report of files that are moved away by half a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping

from watchdog.observers.inotify_c import (
    InotifyConstants,
    WatchDescriptor,
    inotify_add_watch,
    inotify_init,
    inotify_rm_watch,
)

from aosp_plugin.framework.timing import call_in_loop

_MASK = (
    InotifyConstants.IN_CREATE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_MOVE
    | InotifyConstants.IN_DELETE_SELF
    | InotifyConstants.IN_MOVE_SELF
    | InotifyConstants.IN_ONLYDIR
)
"""Without IN_OPEN and IN_CLOSE, because every container and every probe causes them."""

_EVENT = struct.Struct("iIII")
"""struct inotify_event (include/uapi/linux/inotify.h) without its name: watch, mask, cookie, length of the name."""

_LIMITS = {errno.EMFILE: "inotify instance limit reached", errno.ENOSPC: "inotify watch limit reached"}

_BUFFER = 65536
"""Bytes to read at a time: 200 events with the longest names."""


class Inotify:
    """An inotify instance. Its watches may be used in any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report events in ``loop``. May be called in any thread.

        Raises OSError if the host's limit of instances, or the process's of files, is reached.
        """
        self._descriptor = inotify_init()
        if self._descriptor < 0:
            raise _error()
        os.set_blocking(self._descriptor, False)
        os.set_inheritable(self._descriptor, False)  # noqa: FBT003 - a parameter without a name
        self._loop = loop
        self._lock = threading.Lock()  # guards the next four; not held during a system call
        self._watches: dict[int, set[DirectoryWatch]] = {}
        self._calls = 0
        """System calls that use the descriptor now. The last one closes it after ``close``."""
        self._ended: set[int] = set()
        """Watches that have ended during these calls, one of which may have got such a watch just before."""
        self._closed = False
        call_in_loop(loop, self._start)

    def watch(self, path: str, notify: Callable[[], None]) -> DirectoryWatch:
        """Watch which files are created, deleted or moved in a directory; blocks while the directory hangs.

        ``notify`` is called in the event loop after each change, and after the loss of events. Raises OSError if that
        is not possible, or the instance is closed.
        """
        # The identity must be that of the directory that the kernel watches. At the next system call, the path may lead
        # to another one, and back to the first one afterwards, which would then look watched.
        with self._using() as descriptor, _opened(path) as directory:
            watch = DirectoryWatch(self, path, _identity(os.fstat(directory)), notify)
            opened = os.fsencode(f"/proc/self/fd/{directory}")
            while not self._added(watch, inotify_add_watch(descriptor, opened, _MASK)):
                pass
        return watch

    def remove(self, watch: DirectoryWatch) -> None:
        """End a watch. The kernel's watch ends with the last one of the same directory."""
        with contextlib.suppress(ClosedError), self._using() as descriptor:
            with self._lock:
                watches = self._watches.get(watch.descriptor, set())
                watches.discard(watch)
                if watches:
                    return
                self._watches.pop(watch.descriptor, None)
            inotify_rm_watch(descriptor, WatchDescriptor(watch.descriptor))  # it may have ended itself

    def close(self) -> None:
        """Report no further event. To be called in the event loop; may be called again."""
        with self._lock:
            was_closed, self._closed = self._closed, True
            unused = not self._calls
        if not was_closed:
            self._loop.remove_reader(self._descriptor)
            if unused:
                os.close(self._descriptor)

    def _start(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._descriptor, self._read)

    @contextlib.contextmanager
    def _using(self) -> Iterator[int]:
        """Keep the descriptor open in the context. Raises ClosedError."""
        with self._lock:
            if self._closed:
                raise ClosedError
            self._calls += 1
        try:
            yield self._descriptor
        finally:
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._calls -= 1
            if not self._calls:
                self._ended.clear()
            is_last = self._closed and not self._calls
        if is_last:
            os.close(self._descriptor)

    def _added(self, watch: DirectoryWatch, descriptor: int) -> bool:
        """Store the watch that the kernel has returned; return False if it has ended meanwhile. Raises OSError.

        Another thread may have ended a watch of the same directory, which the kernel gives to both.
        """
        if descriptor < 0:
            raise _error(watch.path)
        with self._lock:
            if descriptor in self._ended:
                return False
            watch.descriptor = descriptor
            self._watches.setdefault(descriptor, set()).add(watch)
        return True

    def _read(self) -> None:
        """Report the events that have come. They name no file, so several events of a directory are reported as one."""
        try:
            data = os.read(self._descriptor, _BUFFER)
        except BlockingIOError:
            return
        for descriptor, mask in _masks(data).items():
            with self._lock:
                if mask & InotifyConstants.IN_Q_OVERFLOW:
                    watches = [watch for each in self._watches.values() for watch in each]
                else:
                    watches = [*self._watches.get(descriptor, ())]
                if mask & InotifyConstants.IN_IGNORED:
                    self._watches.pop(descriptor, None)
                    if self._calls:
                        self._ended.add(descriptor)
            for watch in watches:
                watch.report(ended=bool(mask & InotifyConstants.IN_IGNORED))


class DirectoryWatch:
    """One watched directory."""

    def __init__(self, instance: Inotify, path: str, identity: tuple[int, int], notify: Callable[[], None]) -> None:
        """``Inotify.watch`` creates it. ``identity`` is that of the watched directory."""
        self.path = path
        self.descriptor = -1
        """The kernel's number of the watch."""
        self._instance = instance
        self._notify = notify
        self._ended = False
        self._identity = identity

    def stale(self) -> bool:
        """Return whether the path no longer leads to the directory that is watched."""
        try:
            return self._ended or _identity(os.stat(self.path)) != self._identity
        except OSError:
            return True

    def stop(self) -> None:
        """End the watch."""
        self._instance.remove(self)

    def report(self, *, ended: bool) -> None:
        """Notify the subscriber. ``ended``: the directory was removed, or its file system unmounted."""
        self._ended = self._ended or ended
        self._notify()


class ClosedError(OSError):
    """The instance is closed."""


def _masks(data: bytes) -> Mapping[int, int]:
    """Return the masks of the events, by the kernel's number of the watch."""
    masks: dict[int, int] = {}
    offset = 0
    while offset < len(data):
        descriptor, mask, _, length = _EVENT.unpack_from(data, offset)
        masks[descriptor] = masks.get(descriptor, 0) | mask
        offset += _EVENT.size + length
    return masks


def _error(path: str = "") -> OSError:
    """Return the error of the last system call. If a limit is reached, the text names the limit."""
    code = ctypes.get_errno()
    if code in _LIMITS:
        return OSError(code, _LIMITS[code])
    return OSError(code, os.strerror(code), path)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a directory, without access to its files, and return the descriptor. Raises OSError."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
