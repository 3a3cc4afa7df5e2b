"""Subscriptions to changes of files in directories, by inotify or by polling.

If inotify is not available, because fs.inotify.max_user_instances or max_user_watches are used up, as happens on hosts
with many containers, subscribers poll at short intervals until it is available again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from aosp_plugin.framework.events.inotify import Inotify
from aosp_plugin.framework.events.mount_events import MountEvents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aosp_plugin.framework.events.inotify import DirectoryWatch

LOG = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two scans if inotify is not available, or a directory does not exist."""

SAFETY_INTERVAL = 60.0
"""Seconds between two scans if inotify is available; for changes without events."""


class FileEvents:
    """The file and mount events of the process, with one inotify instance. Belongs to the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inotify: Inotify | None = None
        self._logged_errors: dict[str, str] = {}
        self._mounts = MountEvents(self._loop)
        self._subscriptions: list[Subscription] = []

    @property
    def polling(self) -> bool:
        """Whether inotify is not available for an existing directory. May be read in any thread."""
        return any(subscription.polling for subscription in self._subscriptions)

    def subscribe(self) -> Subscription:
        """Return a subscription without directories."""
        subscription = Subscription(self, self._loop)
        self._subscriptions.append(subscription)
        self._mounts.subscribe(subscription.notify)
        return subscription

    def inotify(self) -> Inotify | None:
        """Return the inotify instance, created at the first call; None if it is not available now."""
        if self._inotify is None:
            try:
                self._inotify = Inotify()
            except OSError as error:
                self.log_error("", error)
                return None
            self.log_error("", None)
        return self._inotify

    def log_error(self, path: str, error: OSError | None) -> None:
        """Log that ``path`` (empty: every directory) is polled, or (None) watched again; once for each change."""
        text = str(error) if error else ""
        if text == self._logged_errors.get(path, ""):
            return
        self._logged_errors[path] = text
        if text:
            LOG.warning(
                "inotify unavailable, falling back to polling",
                extra={"path": path or "all", "error": text, "interval": POLL_INTERVAL},
            )
        else:
            LOG.info("inotify available again", extra={"path": path or "all"})

    def close(self) -> None:
        """Stop all events; no subscription is notified afterwards."""
        self._mounts.close()
        for subscription in self._subscriptions:
            subscription.watch(())
        if self._inotify is not None:
            self._inotify.close()


class Subscription:
    """Notifies one subscriber of changes in its directories. To be used in the event loop, except for ``notify``."""

    def __init__(self, events: FileEvents, loop: asyncio.AbstractEventLoop) -> None:
        self.changed = asyncio.Event()
        """Set in the event loop after each change; the subscriber clears it."""
        self.interval = POLL_INTERVAL
        """Seconds after which to scan without a notification."""
        self.polling = False
        """Whether the interval is short because inotify is not available."""
        self._refused = False
        self._first_change: float | None = None
        self._lock = threading.Lock()  # for _changed_paths
        self._changed_paths: set[str] | None = None
        self._events = events
        self._loop = loop
        self._watches: dict[str, DirectoryWatch] = {}

    def watch(self, directories: Iterable[str]) -> None:
        """Watch these directories from now on, and no others.

        To be called before each scan: directories that did not exist before, or that replaced others, are then watched.
        A change between this call and the scan is not lost.
        """
        requested = set(directories)
        for path in list(self._watches):
            if path not in requested or self._watches[path].stale():
                self._watches.pop(path).stop()
        new = requested - self._watches.keys()
        self._refused = False
        unwatched = [path for path in new if not self._start(path)]
        if new:
            self._add_change(None)
        self.polling = self._refused
        self.interval = POLL_INTERVAL if unwatched else SAFETY_INTERVAL

    def changes(self) -> frozenset[str] | None:
        """Return the files in the watched directories that changed since the last call; None if any may have changed.

        None at the first call, if a directory is new or cannot be watched, if events were lost, and if mounts changed.
        """
        with self._lock:
            paths, self._changed_paths = self._changed_paths, set()
        return None if paths is None else frozenset(paths)

    def notify(self, path: str | None = None) -> None:
        """Report a change of the file at ``path``, or of anything.

        May be called in any thread. Cheap if a change is pending.
        """
        self._add_change(path)
        if self._first_change is None:
            self._first_change = time.monotonic()
        if not self.changed.is_set():
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self.changed.set)

    def first_change(self) -> float | None:
        """Return the time of the first change since the last call (``time.monotonic``); None if there was none.

        For measurements only: a change at the very moment of the call may be missing.
        """
        first, self._first_change = self._first_change, None
        return first

    def _add_change(self, path: str | None) -> None:
        with self._lock:
            if path is None:
                self._changed_paths = None
            elif self._changed_paths is not None:
                self._changed_paths.add(path)

    def _start(self, path: str) -> bool:
        """Watch a directory; return False if that is not possible now."""
        inotify = self._events.inotify()
        if inotify is None:
            self._refused = True
            return False
        try:
            self._watches[path] = inotify.watch(path, self.notify)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._events.log_error(path, error)
            self._refused = True
            return False
        self._events.log_error(path, None)
        return True
