"""The latest records of the log, for the status report: they say what has changed on the node."""

import collections
import logging

from aosp_plugin.framework.service import logs
from aosp_plugin.report.document import LogRecord

MAX_RECORDS = 100
MAX_LENGTH = 500
"""Characters of a message or a value: an error may be longer."""


class RecentLog(logging.Handler):
    """Keeps the latest records from the level info on. For any thread."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(logs.add_resource)
        self._records: collections.deque[LogRecord] = collections.deque(maxlen=MAX_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        try:
            message = _text(record.getMessage())
            fields = {name: _text(value) for name, value in logs.fields(record).items()}
        except Exception:  # noqa: BLE001 - as every handler: a library's wrong record must not fail its caller
            self.handleError(record)
            return
        resource = fields.pop("resource", "")
        self._records.appendleft(LogRecord(record.created, record.levelname.lower(), message, resource, fields))

    @property
    def records(self) -> tuple[LogRecord, ...]:
        """The records, newest first."""
        self.acquire()
        try:
            return tuple(self._records)
        finally:
            self.release()


def _text(value: object) -> str:
    """Return a value as text that the report can have: the name of a file may have bytes that are no UTF-8."""
    return str(value)[:MAX_LENGTH].encode(errors="backslashreplace").decode()
