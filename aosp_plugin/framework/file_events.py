"""The file and mount events of the process, and the subscriptions to them.

An event names no file: whoever is woken reads everything again. If inotify is not available, because
fs.inotify.max_user_instances or max_user_watches are used up, as happens on hosts with many containers, subscribers
poll at short intervals until it is available again.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterable

from aosp_plugin.framework.conditions import POLLING, Conditions
from aosp_plugin.framework.inotify import ClosedError, DirectoryWatch, Inotify
from aosp_plugin.framework.timing import DEFAULT, Timings, call_in_loop


class FileEvents:
    """The file and mount events of the process. Belongs to the running event loop, and to be used in its thread."""

    def __init__(self, timings: Timings = DEFAULT, conditions: Conditions | None = None) -> None:
        """Watch the mount table. Raises OSError if the process has no free descriptors."""
        self._timings = timings
        self._conditions = conditions or Conditions()
        self._reporting = threading.Lock()  # for the condition of all subscriptions
        self._loop = asyncio.get_running_loop()
        self._subscriptions: tuple[Subscription, ...] = ()  # replaced by a single assignment
        self._mounts = MountEvents(self._loop, self._notify_all)
        self._starting = threading.Lock()  # guards the next two
        self._inotify: Inotify | None = None
        self._closed = False

    @property
    def polling(self) -> bool:
        """Whether inotify is not available for an existing directory. May be read in any thread."""
        return any(subscription.refusal is not None for subscription in self._subscriptions)

    def subscribe(self) -> Subscription:
        """Return a subscription without directories."""
        subscription = Subscription(self._timings, self._instance, self._report)
        self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def unsubscribe(self, *subscriptions: Subscription) -> None:
        """Forget subscriptions, which their owner closes."""
        self._subscriptions = tuple(each for each in self._subscriptions if each not in subscriptions)
        self._report()

    def close(self) -> None:
        """Stop all events; no subscription is notified afterwards."""
        self._mounts.close()
        with self._starting:
            self._closed = True
        if self._inotify is not None:
            self._inotify.close()
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions = ()

    def _instance(self) -> Inotify:
        """Return the inotify instance of all subscriptions. For any thread. Raises OSError if there is none."""
        with self._starting:
            if self._closed:
                raise ClosedError
            if self._inotify is None:
                self._inotify = Inotify(self._loop)
            return self._inotify

    def _report(self) -> None:
        """Report the first directory that cannot be watched. For any thread."""
        with self._reporting:
            refusals = [each.refusal for each in self._subscriptions if each.refusal is not None]
            path, error = refusals[0] if refusals else ("", "")
            self._conditions.set(POLLING, error, path=path, error=error, interval=self._timings.poll)

    def _notify_all(self) -> None:
        for subscription in self._subscriptions:
            subscription.notify()


class Subscription:
    """Wakes one subscriber after changes in its directories, and after each change of a mount.

    ``watch`` and ``close`` block: call them in one thread of the subscriber, usually a worker thread.
    """

    def __init__(self, timings: Timings, inotify: Callable[[], Inotify], refused: Callable[[], None]) -> None:
        """``inotify`` returns the instance, or raises OSError. ``refused`` is called when ``refusal`` has changed."""
        self.changed = asyncio.Event()
        """Set in the event loop after each change. The subscriber clears it there, before it calls ``watch``."""
        self.interval = timings.poll
        """Seconds after which to scan without a notification. May be read in any thread."""
        self.refusal: tuple[str, str] | None = None
        """A directory that inotify does not watch, so that the interval is short, and why; None if it watches all.

        May be read in any thread.
        """
        self._timings = timings
        self._loop = asyncio.get_running_loop()
        self._first_change: float | None = None
        self._inotify = inotify
        self._refused = refused
        self._watches: dict[str, DirectoryWatch] = {}

    def watch(self, directories: Iterable[str]) -> None:
        """Watch these directories from now on, and no others.

        Call it before each scan: it also watches directories that are new, or have replaced others. A change between
        this call and the scan is not lost. A change of a directory above a watched one, or of a link on its path, may
        cause no event; a later call notices it.
        """
        wanted = frozenset(directories)
        for path in [path for path, watch in self._watches.items() if path not in wanted or watch.stale()]:
            self._watches.pop(path).stop()
        refused: dict[str, OSError] = {}
        """Why an existing directory cannot be watched, by its path; by "all" if there is no inotify instance."""
        try:
            for path in sorted(wanted - self._watches.keys()):
                self._add(path, refused)
        except ClosedError:  # the end of the process, or of its configuration
            return
        except OSError as error:
            refused["all"] = error
        before, self.refusal = self.refusal, next(((path, str(error)) for path, error in refused.items()), None)
        if self.refusal != before:
            self._refused()
        self.interval = self._timings.safety if wanted == self._watches.keys() else self._timings.poll

    def notify(self) -> None:
        """Report a change. May be called in any thread; cheap if a change is pending."""
        if self._first_change is None:
            self._first_change = time.monotonic()
        if not self.changed.is_set():
            call_in_loop(self._loop, self.changed.set)

    def first_change(self) -> float | None:
        """Return the time of the first change since the last call (``time.monotonic``); None if there was none."""
        first, self._first_change = self._first_change, None
        return first

    def close(self) -> None:
        """Stop watching."""
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.stop()

    def _add(self, path: str, refused: dict[str, OSError]) -> None:
        """Watch a directory, or add why it cannot be watched. Raises OSError if there is no inotify instance."""
        inotify = self._inotify()
        try:
            self._watches[path] = inotify.watch(path, self.notify)
        except (FileNotFoundError, NotADirectoryError):
            pass  # polled until it exists
        except ClosedError:
            raise
        except OSError as error:
            refused[path] = error


MOUNT_TABLE = "/proc/self/mountinfo"


class MountEvents:
    """Calls a function in the event loop after changes of the mount table.

    The kernel reports a change as POLLPRI on /proc/self/mountinfo, once to each open file (fs/proc_namespace.c
    ``mounts_poll``), which is always readable as well. The event loop only waits for readable files, so it waits for
    an epoll instance that waits for POLLPRI. The table itself is not read: that may wait for mounts in progress.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        """Watch the mount table. Raises OSError if the process has no free descriptors."""
        self._loop = loop
        self._changed = changed
        with contextlib.ExitStack() as files:
            table = files.enter_context(open(MOUNT_TABLE, "rb", buffering=0))
            self._poll = files.enter_context(select.epoll())
            self._poll.register(table, select.EPOLLPRI)
            self._files = files.pop_all()
        loop.add_reader(self._poll.fileno(), self._report)

    def close(self) -> None:
        """Stop watching. May be called again."""
        if not self._poll.closed:
            self._loop.remove_reader(self._poll.fileno())
            self._files.close()

    def _report(self) -> None:
        self._poll.poll(0)
        self._changed()
