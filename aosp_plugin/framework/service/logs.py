"""Structured logging to standard error: one event per line, as text or as JSON, and without ever blocking.

Log calls pass the details of an event as ``extra=``. Each key becomes a field of the JSON object, or a key=value pair
at the end of the text. The resource comes from the context (``working_for``) and is the first field.
``docs/monitoring.md`` explains events and keys.

A write blocks for as long as nobody reads: the container runtime's logger has stalled, or a terminal is stopped. The
event loop logs, so a thread of its own writes to standard error, from a queue with a limit. What does not fit, or
cannot be written because the disk is full or the reader is gone, is dropped and counted. Warnings and tracebacks of
Python go the same way, which they would not with a queue of ``logging.handlers``.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import io
import json
import logging
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LOG = logging.getLogger(__name__)

RESOURCE: ContextVar[str] = ContextVar("resource", default="")
"""Name of the resource that the current task or thread works for; empty if it works for none, or for all."""

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(level: str, style: str) -> None:
    """Log events of at least ``level`` (debug, info, warning, error) in a ``style`` (text, json)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    handler.addFilter(add_resource)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # At debug level these libraries log their own internals.
    for name in ("asyncio", "grpc", "watchdog"):
        logging.getLogger(name).setLevel(logging.WARNING)


@contextlib.contextmanager
def working_for(resource_name: str) -> Iterator[None]:
    """Set ``RESOURCE`` inside the context, also for the tasks and threads that start in it."""
    token = RESOURCE.set(resource_name)
    try:
        yield
    finally:
        RESOURCE.reset(token)


def milliseconds(seconds: float) -> float:
    """Return a duration in the unit and precision of the log."""
    return round(seconds * 1000, 2)


def add_resource(record: logging.LogRecord) -> bool:
    """Add the current resource to an event that names none; a logging filter that keeps all events."""
    if (resource := RESOURCE.get()) and not hasattr(record, "resource"):
        record.resource = resource
    return True


def fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of an event, the resource first."""
    extra = {key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES}
    return {"resource": extra.pop("resource"), **extra} if "resource" in extra else extra


def _time(record: logging.LogRecord) -> str:
    time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z INFO registered resource=example.com/gpu``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows in lines of its own."""
        pairs = [f"{key}={_quote(value)}" for key, value in fields(record).items()]
        message = record.getMessage().replace("\n", "\\n").replace("\r", "\\r")
        line = " ".join([_time(record), record.levelname, message, *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, message, logger, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            **fields(record),
            "time": _time(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)

        return json.dumps(entry, default=str)


def _quote(value: object) -> str:
    text = str(value)
    if re.fullmatch(r"[^\s\"=]+", text) and text.isprintable():
        return text

    return json.dumps(text)


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


def replace_stderr() -> None:
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
    atexit.register(drain)


def drain(within: float = DRAIN) -> None:
    """Wait until standard error is written, for at most ``within`` seconds; required before ``os._exit``."""
    if _writer is not None:
        _writer.drain(within)


def dropped() -> int:
    """Return how many records were dropped since the start of the process. May be called in any thread."""
    return 0 if _writer is None else _writer.dropped
