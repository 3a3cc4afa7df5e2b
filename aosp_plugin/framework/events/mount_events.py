"""Changes of this process's mounts, which inotify does not report: a binderfs mounted over another one."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import threading
import time
from typing import TYPE_CHECKING

from aosp_plugin.framework.events.mount_table import MOUNTINFO, MountTable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet

LOG = logging.getLogger(__name__)

PAUSE, LONGEST_PAUSE, SHARE = 0.02, 0.25, 0.05
"""Seconds after a reading without another one, at least and at most; in between, as many as let the readings use
``SHARE`` of a processor. A container that starts causes several changes within a moment, and a host may have thousands
of mounts. A change after the pause is reported at once."""

RETRY_INTERVAL = 1.0
"""Seconds from a failed reading to the next one."""

CLOSE_TIMEOUT = 0.2
"""Seconds for the end of the thread. One that hangs ends with its reading, or with the process."""


class MountEvents:
    """Reads the mount table after each change, in a thread of its own, and reports the mount points that changed.

    The kernel reports a change as POLLPRI on /proc/self/mountinfo, once to each open file (fs/proc_namespace.c
    ``mounts_poll``). Poll does not wait for anything else, but a reading may: for mounts and unmounts in progress, and
    for a file system that is asked for its options. Until it ends, ``unread`` is true.
    """

    def __init__(self, notify: Callable[[Collection[str] | None], None]) -> None:
        """``notify`` is called in the thread, and must not wait. None: any mount may have changed.

        Raises OSError if the process has no free descriptors, or may not start a thread.
        """
        self._notify = notify
        self._table = MountTable()
        self._lock = threading.Lock()  # for the next three; held while ``notify`` runs, but during no reading
        self._closed = False
        self._seen = 1
        """Changes, of which those between two calls of ``_count`` count as one. The first is that nothing is known."""
        self._reported = 0
        """Those of them that have been reported."""
        self._failure = ""
        with contextlib.ExitStack() as files:
            self._file = files.enter_context(open(MOUNTINFO, "rb", buffering=0))
            checked = files.enter_context(open(MOUNTINFO, "rb", buffering=0))
            self._end = os.eventfd(0, os.EFD_CLOEXEC)
            files.callback(os.close, self._end)
            self._ended, self._waiting, self._checked = select.poll(), select.poll(), select.poll()
            for poll in (self._ended, self._waiting):
                poll.register(self._end, select.POLLIN)
            self._waiting.register(self._file, select.POLLPRI)
            self._checked.register(checked, select.POLLPRI)
            self._thread = threading.Thread(target=self._run, name="mount events", daemon=True)
            self._files = files.pop_all()
        try:
            self._thread.start()
        except RuntimeError as error:
            self._files.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    def unread(self) -> bool:
        """Return whether mounts have changed since the start of the last reading that was reported.

        May be called in any thread. It does not wait for a reading.
        """
        with self._lock:
            return self._closed or self._count() != self._reported

    def binds_in(self, directories: AbstractSet[str]) -> set[str]:
        """Return the mount points of binds in directories, as of the last reading. May be called in any thread."""
        return self._table.binds_in(directories)

    def close(self) -> None:
        """Stop watching; ``notify`` is not called afterwards."""
        with self._lock:
            if self._closed:
                return
            os.eventfd_write(self._end, 1)  # first: the thread closes its files once it knows
            self._closed = True
        self._thread.join(CLOSE_TIMEOUT)

    def _count(self) -> int:
        """Return the number of changes until now. To be called with the lock."""
        if not self._closed and self._checked.poll(0):
            self._seen += 1
        return self._seen

    def _run(self) -> None:
        with self._files:
            while not self._closed:
                started = time.thread_time()
                try:
                    self._read_after_change()
                except Exception as error:  # noqa: BLE001 - whatever it is, mounts must not change unnoticed
                    self._table.forget()
                    self._log(f"{type(error).__name__}: {error}")
                    self._report(None)
                    pause = RETRY_INTERVAL
                else:
                    self._log("")
                    pause = min(max(PAUSE, (time.thread_time() - started) / SHARE), LONGEST_PAUSE)
                self._ended.poll(pause * 1000)

    def _read_after_change(self) -> None:
        """Wait for a change, read the table, and report what has changed.

        The first table is only compared with later ones: what is scanned before it has been read is scanned again
        after the next change, because it was ``unread`` then.
        """
        if self._table.known:
            self._waiting.poll()
        with self._lock:
            count = self._count()
        self._file.seek(0)
        points = self._table.changes(os.fsdecode(self._file.readall()))
        self._report(points, count)

    def _report(self, points: Collection[str] | None, count: int | None = None) -> None:
        """Report mount points that have changed; all changes up to ``count`` have been read then."""
        with self._lock:
            if self._closed:
                return
            if self._reported or count is None:
                self._notify(points)
            if count is not None:
                self._reported = count

    def _log(self, failure: str) -> None:
        """Log each new failure once, and its end."""
        if failure and failure != self._failure:
            LOG.warning("mount table cannot be read, retrying", extra={"error": failure})
        elif self._failure and not failure:
            LOG.info("mount table can be read again")
        self._failure = failure
