"""File events turned into one message: "look again", and at what.

watchdog's inotify layer is used below its Observer, which would hold back files that are moved away for half a
second, keep the overflow of the kernel's queue to itself, and add two threads to each directory; here one inotify
instance and one thread serve all directories. Where inotify can't be had (fs.inotify.max_user_instances or
max_user_watches are used up, which happens on hosts with many containers), whoever subscribed is told to look at
short intervals instead, until it can be had again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from watchdog.observers.inotify_c import CallbackId, InotifyConstants, InotifyEvent, InotifyFD, Mask

from aosp_plugin.framework.events.mount_events import MountEvents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from watchdog.observers.inotify_c import WatchDescriptor

LOG = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two looks where inotify can't be had, or a directory is not there to be watched."""

SAFETY_INTERVAL = 60.0
"""Seconds between two looks where events come: for what no event tells."""

_MASK = Mask(
    InotifyConstants.IN_CREATE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_MOVE
    | InotifyConstants.IN_DELETE_SELF
    | InotifyConstants.IN_MOVE_SELF
    | InotifyConstants.IN_ONLYDIR
)
"""Not IN_OPEN and IN_CLOSE, which every container and every probe cause."""


class FileEvents:
    """The one inotify instance of the process. Belongs to the event loop that runs when it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inotify: InotifyFD | None = None
        self._complaints: dict[str, str] = {}
        self._mounts = MountEvents()
        self._subscriptions: list[Subscription] = []

    @property
    def polling(self) -> bool:
        """Whether a directory is there that inotify can't watch."""
        return any(subscription.polling for subscription in self._subscriptions)

    def subscribe(self) -> Subscription:
        """Return a subscription to no directory yet."""
        subscription = Subscription(self, self._loop)
        self._subscriptions.append(subscription)
        self._mounts.tell(subscription.tell)
        return subscription

    def inotify(self) -> InotifyFD | None:
        """Return the running instance, made at the first call; None where there can't be one now."""
        if self._inotify is None:
            try:
                self._inotify = InotifyFD()
            except OSError as error:
                self.complain("", error)
                return None
            self._inotify.start()
            self.complain("", None)
        return self._inotify

    def complain(self, path: str, error: OSError | None) -> None:
        """Log that ``path`` (empty: all) is polled, or (None) that it is watched again; once for each change."""
        complaint = str(error) if error else ""
        if complaint == self._complaints.get(path, ""):
            return
        self._complaints[path] = complaint
        if complaint:
            LOG.warning(
                "directories are polled, as inotify can't be had: raise fs.inotify.max_user_instances or _watches",
                extra={"path": path or "all", "error": complaint, "interval": POLL_INTERVAL},
            )
        else:
            LOG.info("directories are watched by inotify again", extra={"path": path or "all"})

    def close(self) -> None:
        """End the threads; no subscription is told anything afterwards."""
        self._mounts.close()
        for subscription in self._subscriptions:
            subscription.watch(())
        if self._inotify is not None:
            self._inotify.stop()
            self._inotify.join()


class Subscription:
    """Tells one part of the process that something in its directories may have changed."""

    def __init__(self, events: FileEvents, loop: asyncio.AbstractEventLoop) -> None:
        self.changed = asyncio.Event()
        """Set, in the event loop, after each change; whoever waits for it clears it."""
        self.interval = POLL_INTERVAL
        """Seconds after which to look even though nothing was reported."""
        self.polling = False
        """Whether that is so often because inotify can't be had."""
        self._refused = False
        self._first: float | None = None
        self._lock = threading.Lock()
        self._paths: set[str] | None = None
        self._events = events
        self._loop = loop
        self._watched: dict[str, _WatchedDirectory] = {}

    def watch(self, directories: Iterable[str]) -> None:
        """Watch these directories from now on, and no others.

        To be called at every look: it takes up directories that were not there before, or stand where another
        one did. What changes between this call and the look that follows is not lost.
        """
        wanted = set(directories)
        for path in list(self._watched):
            if path not in wanted or self._watched[path].stale():
                self._watched.pop(path).stop()
        self._refused = False
        new = wanted - self._watched.keys()
        missing = [path for path in new if not self._start(path)]
        if new:
            self._note(None)
        self.polling = self._refused
        self.interval = POLL_INTERVAL if missing else SAFETY_INTERVAL

    def changes(self) -> frozenset[str] | None:
        """Return the files in the watched directories that changed since this was last asked; None: perhaps any.

        None at first, where a directory is watched anew or can't be watched, where events were lost, and where mounts
        changed.
        """
        with self._lock:
            paths, self._paths = self._paths, set()
        return None if paths is None else frozenset(paths)

    def tell(self, path: str | None = None) -> None:
        """Report a change of the file at ``path``, or of whatever; from any thread, and cheap when one is reported."""
        self._note(path)
        if self._first is None:
            self._first = time.monotonic()
        if not self.changed.is_set():
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self.changed.set)

    def first_change(self) -> float | None:
        """Return when the first change was reported since this was last asked (``time.monotonic``); None: none was.

        For measuring only: a change that is reported at this very moment may go without.
        """
        first, self._first = self._first, None
        return first

    def _note(self, path: str | None) -> None:
        with self._lock:
            if path is None:
                self._paths = None
            elif self._paths is not None:
                self._paths.add(path)

    def _start(self, path: str) -> bool:
        inotify = self._events.inotify()
        if inotify is None:
            self._refused = True
            return False
        try:
            self._watched[path] = _WatchedDirectory(inotify, path, self)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._events.complain(path, error)
            self._refused = True
            return False
        self._events.complain(path, None)
        return True


class _WatchedDirectory:
    """One directory under inotify; the call-backs come in watchdog's thread."""

    def __init__(self, inotify: InotifyFD, path: str, subscription: Subscription) -> None:
        """Raise OSError where the directory can't be watched."""
        self._inotify = inotify
        self._path = path
        self._subscription = subscription
        self._gone = False
        self._identity = _identity(path)
        self._descriptor = inotify.add_callback(os.fsencode(path), _MASK, self, CallbackId(id(self)))
        if self._descriptor < 0:  # the one error that watchdog keeps to itself, with the call-back
            self.stop()
            raise PermissionError(13, "inotify: permission denied", path)

    def stale(self) -> bool:
        """Say whether the path no longer leads to the directory that is watched."""
        return self._gone or _identity(self._path) != self._identity

    def stop(self) -> None:
        """Watch no longer."""
        if not self._gone:
            self._inotify.remove_callbacks([(self._descriptor, CallbackId(id(self)))])

    def on_event(self, event: InotifyEvent) -> None:
        """Take an event of a file in the directory, or of the directory itself, which has no name."""
        self._subscription.tell(os.path.join(self._path, os.fsdecode(event.name)) if event.name else None)

    def on_watch_deleted(self, _descriptor: WatchDescriptor) -> None:
        """Take the end of the watch: the directory was removed, or its file system unmounted."""
        self._gone = True
        self._subscription.tell()

    def on_queue_overflow(self) -> None:
        """Take the loss of events (fs.inotify.max_queued_events): whatever was lost, a look finds."""
        self._subscription.tell()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino
