"""The latest records of the log, for the status report: they say what has changed on the node."""

import collections
import logging

from aosp_plugin.framework.service import logs
from aosp_plugin.report.document import LogRecord

MAX_RECORDS = 100
MAX_LENGTH = 500
"""Characters of a value: an error may be longer."""


class RecentLog(logging.Handler):
    """Keeps the latest records from the level info on. For any thread."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(logs.add_resource)
        self._records: collections.deque[LogRecord] = collections.deque(maxlen=MAX_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        fields = {name: str(value)[:MAX_LENGTH] for name, value in logs.fields(record).items()}
        resource = fields.pop("resource", "")
        level = record.levelname.lower()
        self._records.appendleft(LogRecord(record.created, level, record.getMessage(), resource, fields))

    @property
    def records(self) -> tuple[LogRecord, ...]:
        """The records, newest first."""
        self.acquire()
        try:
            return tuple(self._records)
        finally:
            self.release()
