"""The file and mount events of the process, and the subscriptions to them.

An event names no file: whoever is woken reads everything again. If inotify is not available, because
fs.inotify.max_user_instances or max_user_watches are used up, as happens on hosts with many containers, subscribers
poll at short intervals until it is available again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import time
from collections.abc import Callable, Iterable

from aosp_plugin.framework.aio import call_in_loop
from aosp_plugin.framework.events.inotify import DirectoryWatch, Inotify
from aosp_plugin.framework.observer import LastingProblem
from aosp_plugin.framework.timings import DEFAULT, Timings

LOG = logging.getLogger(__name__)


class FileEvents:
    """The file and mount events of the process. Belongs to the running event loop, and to be used in its thread."""

    def __init__(self, timings: Timings = DEFAULT) -> None:
        """Watch the mount table. Raises OSError if the process has no free descriptors."""
        self._timings = timings
        self._subscriptions: tuple[Subscription, ...] = ()  # replaced by a single assignment
        self._mounts = MountEvents(asyncio.get_running_loop(), self._notify_all)

    @property
    def polling(self) -> bool:
        """Whether inotify is not available for an existing directory. May be read in any thread."""
        return any(subscription.polling for subscription in self._subscriptions)

    def subscribe(self) -> Subscription:
        """Return a subscription without directories."""
        subscription = Subscription(self._timings)
        self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def unsubscribe(self, *subscriptions: Subscription) -> None:
        """Forget subscriptions, which their owner closes."""
        self._subscriptions = tuple(each for each in self._subscriptions if each not in subscriptions)

    def close(self) -> None:
        """Stop all events; no subscription is notified afterwards."""
        self._mounts.close()
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions = ()

    def _notify_all(self) -> None:
        for subscription in self._subscriptions:
            subscription.notify()


class Subscription:
    """Wakes one subscriber after changes in its directories, and after each change of a mount.

    ``watch`` and ``close`` block, and are to be called in one thread of the subscriber, a worker thread in most cases.
    Each subscription has an inotify instance of its own: while ``watch`` hangs because a directory does, the thread of
    its instance stops, and other subscriptions must not depend on it.
    """

    def __init__(self, timings: Timings) -> None:
        self.changed = asyncio.Event()
        """Set in the event loop after each change. The subscriber clears it there, before it calls ``watch``."""
        self.interval = timings.poll
        """Seconds after which to scan without a notification. May be read in any thread."""
        self.polling = False
        """Whether the interval is short because inotify is not available. May be read in any thread."""
        self._timings = timings
        self._loop = asyncio.get_running_loop()
        self._first_change: float | None = None
        self._inotify: Inotify | None = None
        self._watches: dict[str, DirectoryWatch] = {}
        self._problem = LastingProblem(LOG, "inotify unavailable, falling back to polling", "inotify available again")

    def watch(self, directories: Iterable[str]) -> None:
        """Watch these directories from now on, and no others.

        To be called before each scan: directories that did not exist before, or that replaced others, are then watched.
        A change between this call and the scan is not lost. A change of a directory above a watched one, or of a link
        on its path, may cause no event; a later call notices it.
        """
        wanted = frozenset(directories)
        for path in [path for path, watch in self._watches.items() if path not in wanted or watch.stale()]:
            self._watches.pop(path).stop()
        refused: dict[str, OSError] = {}
        """Why an existing directory cannot be watched, by its path; by "all" if there is no inotify instance."""
        try:
            for path in sorted(wanted - self._watches.keys()):
                self._add(path, refused)
        except OSError as error:
            refused["all"] = error
        if refused:
            path, refusal = next(iter(refused.items()))
            self._problem.set(str(refusal), path=path, error=str(refusal), interval=self._timings.poll)
        else:
            self._problem.set("")
        self.polling = bool(refused)
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
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _add(self, path: str, refused: dict[str, OSError]) -> None:
        """Watch a directory, or add why it cannot be watched. Raises OSError if there is no inotify instance."""
        if self._inotify is None:
            self._inotify = Inotify(self.notify)
        try:
            self._watches[path] = self._inotify.watch(path)
        except (FileNotFoundError, NotADirectoryError):
            pass  # polled until it exists
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
