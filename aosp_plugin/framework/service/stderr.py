"""Standard error as a stream that never blocks its writers.

A write blocks for as long as nobody reads: the container runtime's logger has stalled, or a terminal is stopped. The
event loop logs, so a thread of its own writes to standard error, from a queue with a limit. What does not fit, or
cannot be written because the disk is full or the reader is gone, is dropped and counted. Warnings and tracebacks of
Python go the same way, which they would not with a queue of ``logging.handlers``.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import queue
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LOG = logging.getLogger(__name__)

LIMIT = 1000
"""Records that may wait: a quarter of a megabyte, if they are of the usual length. Another 64 KiB are in a pipe."""

DRAIN = 1.0
"""Seconds for which the end of the process waits until everything is written."""


class QueuedWriter(io.RawIOBase):
    """Writes to a file descriptor in a thread of its own. May be used in any thread."""

    def __init__(self, descriptor: int) -> None:
        """``descriptor`` stays open. Raises RuntimeError if there can be no further thread."""
        self._descriptor = descriptor
        self._records: queue.Queue[bytes] = queue.Queue(LIMIT)
        self._counting = threading.Lock()  # guards the next one
        self.dropped = 0
        """Number of records that were dropped: each is written by one call, as logging does."""
        thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the thread gets no signals
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer) -> int:
        """Let the thread write ``data``, or drop it as a whole if too much is waiting. Return its length."""
        record = bytes(data)
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._drop()
        return len(record)

    def drain(self, within: float) -> bool:
        """Wait until everything is written, for at most ``within`` seconds; return whether it is."""
        with self._records.all_tasks_done:
            return self._records.all_tasks_done.wait_for(lambda: not self._records.unfinished_tasks, within)

    def _drop(self) -> None:
        with self._counting:
            self.dropped += 1

    def _run(self) -> None:
        """Write the records, and wait for as long as nobody reads. When they flow again, log how many were dropped."""
        reported = 0
        while True:
            record = self._records.get()
            try:
                while record:
                    record = record[os.write(self._descriptor, record) :]
            except OSError:  # no space, or the reader is gone; the next record may succeed
                self._drop()
            else:
                if (count := self.dropped - reported) and self._records.empty():
                    reported += count
                    LOG.warning("log records dropped", extra={"count": count})
            self._records.task_done()


_writer: QueuedWriter | None = None


def install() -> None:
    """Replace ``sys.stderr``, once in a process, and before logging is set up.

    Nothing changes if there is no standard error, or if no thread can start: such a process cannot work, and says so. A
    child of ``os.fork`` that does not call exec has no such thread, and loses what it writes.
    """
    global _writer  # noqa: PLW0603 - standard error is one for the process as well
    if _writer is not None or sys.stderr is None:
        return
    try:
        _writer = QueuedWriter(sys.stderr.fileno())
    except RuntimeError:
        return
    encoding, errors = sys.stderr.encoding, sys.stderr.errors
    sys.stderr = io.TextIOWrapper(_writer, encoding=encoding, errors=errors, write_through=True)
    atexit.register(drain, DRAIN)


def drain(within: float) -> None:
    """Wait until standard error is written, for at most ``within`` seconds; required before ``os._exit``."""
    if _writer is not None:
        _writer.drain(within)


def dropped() -> int:
    """Return how many records were dropped since the start of the process. May be called in any thread."""
    return 0 if _writer is None else _writer.dropped
