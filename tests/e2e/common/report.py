"""The report of a run: a line for each item, and the totals."""

from __future__ import annotations

import os
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
    """Print a line and flush the output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def describe(error: BaseException) -> str:
    """Return an error's message, or the line of code that raised it if it has no message."""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return kind + (str(error) or f"at: {traceback.extract_tb(error.__traceback__)[-1].line}")


class Report:
    """Counts the items, and prints the result of each one at once."""

    def __init__(self) -> None:
        """Start with no items."""
        self.passed = self.failed = self.skipped = 0

    @property
    def _number(self) -> int:
        return self.passed + self.failed + self.skipped

    def run(self, title: str, item: Callable[[], None]) -> bool:
        """Run an item, print its result, and return whether it passed."""
        started = time.monotonic()
        try:
            item()
        except Exception as error:  # noqa: BLE001 - the other items run after any error
            self.not_ok(title, describe(error))
            return False
        self.ok(title, time.monotonic() - started)
        return True

    def ok(self, title: str, seconds: float) -> None:
        """Report that an item passed."""
        self.passed += 1
        say(f"ok {self._number} - {title} ({seconds:.1f} s)")

    def not_ok(self, title: str, detail: str) -> None:
        """Report that an item failed, and why."""
        self.failed += 1
        say(f"not ok {self._number} - {title} : {' '.join(detail.split())[:_DETAIL]}")

    def skip(self, title: str, reason: str) -> None:
        """Report that an item could not run on this machine, and why."""
        self.skipped += 1
        say(f"ok {self._number} - {title} # skip: {reason}")

    def end(self) -> int:
        """Print the totals, and return the exit code.

        In CI, which sets ``E2E_STRICT``, a skipped item fails the run: what was not run proves nothing.
        """
        say(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        strict = os.environ.get("E2E_STRICT") == "yes"
        return FAILED if self.failed or (strict and self.skipped) else PASSED
