"""One event a line, as text or as JSON, on standard error.

Whoever logs gives what belongs to an event as ``extra=``: each key becomes a field of the JSON object, and a
key=value at the end of the text. The resource is known from the context (``observer.RESOURCE``), and comes first.
``docs/logs.md`` lists keys and messages.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys

from aosp_plugin.framework.observer import RESOURCE

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(level: str, style: str) -> None:
    """Log what is at least of ``level`` (debug, info, warning, error) as ``style`` (text, json)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    handler.addFilter(name_resource)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # asyncio tells at debug level which selector it uses, and grpc of its own plumbing
    for name in ("asyncio", "grpc", "watchdog"):
        logging.getLogger(name).setLevel(logging.WARNING)


def name_resource(record: logging.LogRecord) -> bool:
    """Add the resource that the event is about, where the event does not say itself; a filter that keeps all."""
    if (resource := RESOURCE.get()) and not hasattr(record, "resource"):
        record.resource = resource
    return True


def fields(record: logging.LogRecord) -> dict[str, object]:
    """Return what belongs to the event, the resource first."""
    given = {key: value for key, value in vars(record).items() if key not in _OWN}
    return {"resource": given.pop("resource"), **given} if "resource" in given else given


def _time(record: logging.LogRecord) -> str:
    when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z INFO registered resource=aosp.io/binder``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows on lines of its own."""
        pairs = [f"{key}={_value(value)}" for key, value in fields(record).items()]
        line = " ".join([_time(record), record.levelname, _one_line(record.getMessage()), *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """An object a line: time, level, message, logger, and the event's own fields."""

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


def _value(value: object) -> str:
    text = str(value)
    return text if re.fullmatch(r"[^\s\"=]+", text) and text.isprintable() else json.dumps(text)


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")
