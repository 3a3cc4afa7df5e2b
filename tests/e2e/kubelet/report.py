"""What was proved, a line for each item, and what it comes to."""

from __future__ import annotations

import sys
import time
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PASSED: Final = 0
FAILED: Final = 1
_DETAIL: Final = 700
"""Characters of an error that are shown on the item's line."""


def say(line: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Report:
    """Counts items, and prints each as soon as it is known."""

    def __init__(self) -> None:
        """Begin at 1."""
        self.passed = self.failed = self.skipped = 0

    @property
    def _number(self) -> int:
        return self.passed + self.failed + self.skipped

    def run(self, title: str, item: Callable[[], None]) -> bool:
        """Run an item, and print what became of it."""
        started = time.monotonic()
        try:
            item()
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the other items are tried
            self.fail(title, error)
            return False
        self.passed += 1
        say(f"ok {self._number} - {title} ({time.monotonic() - started:.1f} s)")
        return True

    def fail(self, title: str, error: Exception) -> None:
        """Say that an item does not hold, and why."""
        self.failed += 1
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        detail = " ".join(str(error).split())[:_DETAIL] or f"at: {where.line}"
        say(f"not ok {self._number} - {title} : {kind}{detail}")

    def skip(self, title: str, why: str) -> None:
        """Say that an item could not be run here."""
        self.skipped += 1
        say(f"ok {self._number} - {title} # skip: {why}")

    def end(self) -> int:
        """Print the sum, and return the exit code."""
        say(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return FAILED if self.failed else PASSED
