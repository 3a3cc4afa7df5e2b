"""Lines of a run that pytest does not report, and texts of errors."""

import sys
import traceback


def say(line: str) -> None:
    """Print a line and flush the output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def describe(error: BaseException) -> str:
    """Return an error's message, or the line of code that raised it if it has no message."""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return kind + (str(error) or f"at: {traceback.extract_tb(error.__traceback__)[-1].line}")
