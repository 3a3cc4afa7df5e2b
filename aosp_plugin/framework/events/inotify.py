"""One inotify instance with one thread for any number of directories.

This is the only module that uses watchdog. It uses ``watchdog.observers.inotify_c``, the private layer below watchdog's
Observer: the Observer delays the report of files that are moved away by half a second, hides the overflow of the
kernel's queue, and adds two threads per directory. ``tests/unit/deviceplugin/test_inotify.py`` fails if the private
names or signatures change.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from watchdog.observers.inotify_c import CallbackId, InotifyConstants, InotifyEvent, InotifyFD, Mask, WatchDescriptor

_MASK = Mask(
    InotifyConstants.IN_CREATE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_MOVE
    | InotifyConstants.IN_DELETE_SELF
    | InotifyConstants.IN_MOVE_SELF
    | InotifyConstants.IN_ONLYDIR
)
"""Without IN_OPEN and IN_CLOSE, because every container and every probe causes them."""


class Inotify:
    """An inotify instance. To be used in one thread.

    watchdog holds a lock during inotify_add_watch(2), and its thread needs that lock to report events: while ``watch``
    hangs because the directory does, no event of this instance is reported.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        """``notify`` is called in the thread of this object after each change, and after the loss of events.

        Raises OSError if the host's limit of instances, or the process's of files, is reached. watchdog opens three
        descriptors. If it cannot open the last ones, it does not close the first one: each attempt would take one more
        descriptor from a process that has hardly any.
        """
        self._notify = notify
        self._instance = InotifyFD.__new__(InotifyFD)
        try:
            self._instance.__init__()  # type: ignore[misc]
        except OSError:
            descriptor = getattr(self._instance, "_inotify_fd", None)
            if descriptor is not None:
                os.close(descriptor)
            raise
        self._instance.start()

    def watch(self, path: str) -> DirectoryWatch:
        """Watch which files are created, deleted or moved in a directory. Raises OSError if that is not possible."""
        return DirectoryWatch(self._instance, path, self._notify)

    def close(self) -> None:
        """End the thread; ``notify`` is not called afterwards."""
        self._instance.stop()
        self._instance.join()


class DirectoryWatch:
    """One watched directory."""

    def __init__(self, instance: InotifyFD, path: str, notify: Callable[[], None]) -> None:
        """Start to watch. Raises OSError."""
        self._instance = instance
        self._path = path
        self._notify = notify
        self._removed = False
        self._identity = _identity(path)
        self._descriptor = instance.add_callback(os.fsencode(path), _MASK, self, CallbackId(id(self)))
        if self._descriptor < 0:  # EACCES, the only error that watchdog does not raise; it keeps the callback
            self.stop()
            raise PermissionError(errno.EACCES, "inotify: permission denied", path)

    def stale(self) -> bool:
        """Return whether the path no longer leads to the directory that is watched."""
        return self._removed or _identity(self._path) != self._identity

    def stop(self) -> None:
        """End the watch."""
        if not self._removed:
            self._instance.remove_callbacks([(self._descriptor, CallbackId(id(self)))])

    def on_event(self, _event: InotifyEvent) -> None:
        """Handle an event of a file in the directory, or of the directory itself."""
        self._notify()

    def on_watch_deleted(self, _descriptor: WatchDescriptor) -> None:
        """Handle the end of the watch: the directory was removed, or its file system unmounted."""
        self._removed = True
        self._notify()

    def on_queue_overflow(self) -> None:
        """Handle the loss of events (fs.inotify.max_queued_events)."""
        self._notify()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
