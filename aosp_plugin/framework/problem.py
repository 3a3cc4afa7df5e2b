"""Problems that last, which are logged once."""

from __future__ import annotations

import logging


class Problem:
    """What is wrong now. It is logged when it begins, when it becomes another one, and when it ends."""

    def __init__(self, log: logging.Logger, begins: str, ends: str, level: int = logging.WARNING) -> None:
        """``begins`` and ``ends`` are the messages in the log; ``level`` is that of the first one."""
        self._log = log
        self._begins = begins
        self._ends = ends
        self._level = level
        self.text = ""
        """The problem; empty if there is none. Set in one thread, and may be read in any."""

    def set(self, text: str, **extra: object) -> None:
        """Set the problem, or with an empty text its end. ``extra`` are the fields of the log record."""
        before, self.text = self.text, text
        if text and text != before:
            self._log.log(self._level, self._begins, extra=extra)
        elif before and not text:
            self._log.info(self._ends, extra=extra)
