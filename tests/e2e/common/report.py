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
_DETAIL: Final = 900
"""Characters of an error that are shown on the item's line."""


def say(line: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def describe(error: BaseException) -> str:
    """Return an error's own words, or the line that it comes from where it has none."""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return kind + (str(error) or f"at: {traceback.extract_tb(error.__traceback__)[-1].line}")


class Report:
    """Counts items, and prints each as soon as it is known."""

    def __init__(self) -> None:
        """Begin at 1."""
        self.passed = self.failed = self.skipped = 0

    @property
    def _number(self) -> int:
        return self.passed + self.failed + self.skipped

    def run(self, title: str, item: Callable[[], None]) -> bool:
        """Run an item, print what became of it, and say whether it holds."""
        started = time.monotonic()
        try:
            item()
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the other items are tried
            self.not_ok(title, describe(error))
            return False
        self.ok(title, time.monotonic() - started)
        return True

    def ok(self, title: str, seconds: float) -> None:
        """Say that an item holds."""
        self.passed += 1
        say(f"ok {self._number} - {title} ({seconds:.1f} s)")

    def not_ok(self, title: str, detail: str) -> None:
        """Say that an item does not hold, and why."""
        self.failed += 1
        say(f"not ok {self._number} - {title} : {' '.join(detail.split())[:_DETAIL]}")

    def skip(self, title: str, why: str) -> None:
        """Say that an item could not be run here."""
        self.skipped += 1
        say(f"ok {self._number} - {title} # skip: {why}")

    def end(self) -> int:
        """Print the sum, and return the exit code."""
        say(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return FAILED if self.failed else PASSED
