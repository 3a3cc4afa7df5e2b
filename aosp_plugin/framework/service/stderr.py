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
import signal
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LOG = logging.getLogger(__name__)

LIMIT = 256 * 1024
"""Bytes that may wait: about 1,500 records. Another 64 KiB are in a pipe."""

DRAIN = 1.0
"""Seconds for which the end of the process waits until everything is written."""


class QueuedWriter(io.RawIOBase):
    """Writes to a file descriptor in a thread of its own. May be used in any thread."""

    def __init__(self, descriptor: int) -> None:
        """``descriptor`` stays open. ``start`` has to follow."""
        self._descriptor = descriptor
        self._changed = threading.Condition()  # guards the next three
        self._waiting: deque[bytes] = deque()
        self._size = 0
        """Bytes that are not written yet."""
        self.dropped = 0
        """Number of records that were dropped: each is written by one call, as logging does."""

    def start(self) -> None:
        """Start the thread, which gets no signals. Raises RuntimeError if there can be no further thread."""
        thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
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
        with self._changed:
            if self._size and self._size + len(record) > LIMIT:
                self.dropped += 1
            else:
                self._waiting.append(record)
                self._size += len(record)
                self._changed.notify_all()
        return len(record)

    def drain(self, within: float) -> bool:
        """Wait until everything is written, for at most ``within`` seconds; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._size, within)

    def _run(self) -> None:
        reported = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                record = self._waiting.popleft()
            written = self._write_whole(record)
            with self._changed:
                self.dropped += not written
                dropped, flows = self.dropped - reported, written and not self._waiting
            if dropped and flows:
                reported += dropped
                LOG.warning("log records dropped", extra={"count": dropped})
            with self._changed:
                self._size -= len(record)
                self._changed.notify_all()

    def _write_whole(self, record: bytes) -> bool:
        """Write a record, and wait for as long as nobody reads. Return False if it cannot be written."""
        try:
            while record:
                record = record[os.write(self._descriptor, record) :]
        except OSError:  # no space, or the reader is gone; the next record may succeed
            return False
        return True


_writer: QueuedWriter | None = None


def install() -> None:
    """Replace ``sys.stderr``, once in a process, and before logging is set up.

    Nothing changes if there is no standard error, or if no thread can start: such a process cannot work. A child of
    ``os.fork`` that does not call exec has no such thread, and loses what it writes.
    """
    global _writer  # noqa: PLW0603 - standard error is one for the process as well
    if _writer is not None or sys.stderr is None:
        return
    writer = QueuedWriter(sys.stderr.fileno())
    try:
        writer.start()
    except RuntimeError:
        return
    _writer = writer
    encoding, errors = sys.stderr.encoding, sys.stderr.errors
    sys.stderr = io.TextIOWrapper(writer, encoding=encoding, errors=errors, write_through=True)
    atexit.register(drain, DRAIN)


def drain(within: float) -> None:
    """Wait until standard error is written, for at most ``within`` seconds; required before ``os._exit``."""
    if _writer is not None:
        _writer.drain(within)


def dropped() -> int:
    """Return how many records were dropped since the start of the process. May be called in any thread."""
    return 0 if _writer is None else _writer.dropped
