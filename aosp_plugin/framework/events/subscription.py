"""One subscription to changes of files in directories, by inotify or by polling.

If inotify is not available, because fs.inotify.max_user_instances or max_user_watches are used up, as happens on hosts
with many containers, subscribers poll at short intervals until it is available again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING

from aosp_plugin.framework.events.inotify import Inotify
from aosp_plugin.framework.events.pacing import ANY, CALM, MAX_CHANGED_PATHS, MOUNTS
from aosp_plugin.framework.events.polling_log import POLL_INTERVAL
from aosp_plugin.framework.events.watched_directories import WatchedDirectories

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from aosp_plugin.framework.events.inotify import DirectoryWatch
    from aosp_plugin.framework.events.mount_events import MountEvents
    from aosp_plugin.framework.events.pacing import Pacing
    from aosp_plugin.framework.events.polling_log import PollingLog

SAFETY_INTERVAL = 60.0
"""Seconds between two scans if inotify is available; for changes without events."""


class Subscription:
    """Notifies one subscriber of changes in its directories.

    ``watch``, ``changes`` and ``close`` block, and are to be called in one thread of the subscriber, a worker thread in
    most cases. Each subscription has an inotify instance of its own: while ``watch`` hangs because a directory does,
    the thread of its instance stops, and other subscriptions must not depend on it. ``_lock`` guards what other threads
    note. It is never held across a system call.

    A paced subscription withholds changes until they are ``due``, and then ``release`` is called in the event loop.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, log: PollingLog, mounts: MountEvents, pacing: Pacing | None
    ) -> None:
        self.changed = asyncio.Event()
        """Set in the event loop after each change, or, if paced, when ``due`` may be earlier. The subscriber clears it
        there, before it calls ``changes`` or ``due``."""
        self.interval = POLL_INTERVAL
        """Seconds after which to scan without a notification. May be read in any thread."""
        self.polling = False
        """Whether the interval is short because inotify is not available. May be read in any thread."""
        self._lock = threading.Lock()  # for the next five
        self._pacing = pacing
        self._noted_paths: set[str] | None = set()
        self._noted_mounts: set[str] | None = None
        """Mount points that changed, or ``ANY``; None if no mount has changed. Some concern no watched directory."""
        self._settled = True
        """Whether no scan is in progress, and the last one has seen the mounts as they were last reported."""
        self._first_change: float | None = None
        self._loop = loop
        self._log = log
        self._inotify: Inotify | None = None
        self._refused = False
        self._directories = WatchedDirectories(self._start)
        self._mounts = mounts
        self._changed_paths: set[str] | None = None
        self._unsettled: set[str] | None = set()
        """What was watched or returned by ``changes`` since the mounts were settled; None: everything. The scan may
        have seen a state that no comparison of the mount table shows."""
        self._suspects: set[str] = set()
        """Watched directories that may have been replaced by others since ``watch``."""
        self._check_all = False
        """Whether all may have been."""

    def watch(self, directories: Iterable[str], *, check_all: bool = False) -> None:
        """Watch these directories from now on, and no others.

        To be called before each scan: directories that did not exist before, or that replaced others, are then watched.
        A change between this call and the scan is not lost. ``check_all``: do not rely on events to find out which
        directories were replaced.
        """
        self._collect()
        check_all = check_all or self._check_all
        suspects, self._suspects, self._check_all = self._suspects, set(), False
        self._refused = False
        new = self._directories.replace(frozenset(directories), suspects, check_all=check_all)
        for path in new:
            self._add_change(path if self._directories.has(path) else None)
        self._suspects, self._check_all = set(), False  # the watches are new
        self._unsettle(new)
        self.polling = self._refused
        self.interval = SAFETY_INTERVAL if all(new.values()) else POLL_INTERVAL

    def changes(self) -> frozenset[str] | None:
        """Return the files in the watched directories that changed since the last call; None if any may have changed.

        A changed file that is itself a watched directory may have been replaced by another one, with other files.

        None at the first call, if events were lost or are too many, and if a directory that is in no other watched one
        is new, was replaced or mounted over, or cannot be watched.
        """
        self._collect()
        paths, self._changed_paths = self._changed_paths, set()
        self._unsettle(paths)
        return None if paths is None else frozenset(paths)

    def scanned(self) -> None:
        """Report that what ``changes`` has returned has been scanned.

        The next mount repeats it if this is not called, or if mounts have changed since the table was read.
        """
        if self._mounts.unread():
            return
        with self._lock:
            self._settled = self._noted_mounts is None
        if self._settled:
            self._unsettled = set()

    def notify(self, path: str | None = None) -> None:
        """Report a change of the file at ``path``, or of anything.

        May be called in any thread. Cheap if a change is pending.
        """
        self._note(ANY if path is None else path)

    def notify_mounts(self, points: Collection[str] | None) -> None:
        """Report changes of mounts at ``points``, or of any, unless they cannot concern the watched directories.

        May be called in any thread. Each container that starts mounts something.
        """
        with self._lock:
            concerned = points is None or not self._settled or self._are_concerned(points)
            if concerned:
                noted = (self._noted_mounts or set()).union([ANY] if points is None else points)
                self._noted_mounts = noted if len(noted) <= MAX_CHANGED_PATHS else {ANY}
        if concerned:
            self._note(MOUNTS)

    def due(self) -> float | None:
        """Return when to call ``release`` (``time.monotonic``); None if no change is withheld. For the event loop."""
        with self._lock:
            return None if self._pacing is None else self._pacing.due()

    def release(self, *, everything: bool = False) -> None:
        """Stop withholding the changes that are due, or all. For the event loop."""
        if self._pacing is None:
            return
        with self._lock:
            paths, first = self._pacing.take(time.monotonic(), everything=everything)
            for path in paths:
                self._add_noted(path, first)
        if paths:
            self._loop.call_later(CALM, self._forget)

    def first_change(self) -> float | None:
        """Return the time of the first change since the last call (``time.monotonic``); None if there was none.

        Changes that are withheld do not count yet.
        """
        with self._lock:
            first, self._first_change = self._first_change, None
        return first

    def close(self) -> None:
        """Stop watching."""
        self._directories.stop()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        self._log.forget(self)

    def _note(self, path: str) -> None:
        now = time.monotonic()
        with self._lock:
            if self._pacing is not None:
                wake = self._pacing.note(path, now)
            else:
                self._add_noted(path, now)
                wake = True
        if wake and not self.changed.is_set():
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self.changed.set)

    def _add_noted(self, path: str, now: float | None) -> None:
        if self._first_change is None:
            self._first_change = now
        if path == ANY or (self._noted_paths is not None and len(self._noted_paths) >= MAX_CHANGED_PATHS):
            self._noted_paths = None
        elif self._noted_paths is not None and path != MOUNTS:
            self._noted_paths.add(path)

    def _forget(self) -> None:
        """Forget which files were scanned recently."""
        with self._lock:
            if self._pacing is not None:
                self._pacing.forget(time.monotonic())

    def _add_found(self, path: str, *, again: bool = False) -> None:
        """Add the change of a file that the scan has found, unless it is to be withheld."""
        with self._lock:
            admitted = self._pacing is None or self._pacing.admit(path, time.monotonic(), again=again)
        if admitted:
            self._add_change(path)

    def _collect(self) -> None:
        """Add what other threads have noted to the changes."""
        with self._lock:
            paths, self._noted_paths = self._noted_paths, set()
            points, self._noted_mounts = self._noted_mounts, None
            self._settled = False
        if paths is None:
            self._add_change(None)
        for path in paths or ():
            self._add_change(path)
        if points is not None:
            self._add_mounts(points)

    def _unsettle(self, paths: Iterable[str] | None) -> None:
        if paths is None:
            self._unsettled = None
        elif self._unsettled is not None:
            self._unsettled.update(paths)
            if len(self._unsettled) > MAX_CHANGED_PATHS:
                self._unsettled = None

    def _add_change(self, path: str | None) -> None:
        """Add the change of a file, or of anything. If a watched directory is at this path, it may be another one."""
        directories = self._directories
        if path is None or directories.is_above(path):
            self._changed_paths, self._check_all = None, True
            return
        if path in directories.watches:
            self._suspects.add(path)
            if not directories.has(path):
                self._changed_paths = None
        if self._changed_paths is not None:
            self._changed_paths.add(path)

    def _are_concerned(self, points: Collection[str]) -> bool:
        """Return whether changes at these mount points may concern the directories, which ``watch`` is not changing."""
        directories = self._directories
        if directories.have_links or not directories.are_complete or any(map(directories.concerns, points)):
            return True
        return bool(self._binds_without_watch())

    def _binds_without_watch(self) -> set[str]:
        """Return the mount points of binds in watched directories that are not watched themselves.

        If another file was mounted there meanwhile, the table may be the same, and no end of a watch shows it:
        ``MountTable.changes``. A whole file system is mounted on a directory; who uses what is in it watches it.
        """
        watches = self._directories.watches.keys()
        return self._mounts.binds_in(watches) - watches

    def _add_mounts(self, points: Collection[str]) -> None:
        """Add the mount points that changed, as far as they concern the watched directories."""
        directories = self._directories
        unsettled, self._unsettled = self._unsettled, set()
        if ANY in points or directories.have_links or unsettled is None:
            self._add_change(None)
            return
        for point in filter(directories.concerns, points):
            self._add_found(point)
        for path in self._binds_without_watch() | unsettled:
            self._add_found(path, again=True)

    def _start(self, path: str) -> DirectoryWatch | None:
        """Watch a directory; return None if that is not possible now."""
        try:
            if self._inotify is None:
                self._inotify = Inotify()
        except OSError as error:
            self._log.record(self, "", error)
            self._refused = True
            return None
        self._log.record(self, "", None)
        try:
            watch = self._inotify.watch(path, self.notify)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._log.record(self, path, error)
            self._refused = True
            return None
        self._log.record(self, path, None)
        return watch
