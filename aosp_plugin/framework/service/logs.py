"""Structured logging to standard error: one event per line, as text or as JSON.

Log calls pass the details of an event as ``extra=``. Each key becomes a field of the JSON object, or a key=value pair
at the end of the text. The resource comes from the context (``working_for``) and is the first field.
``docs/monitoring.md`` explains events and keys.
"""

import contextlib
import datetime
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar

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
