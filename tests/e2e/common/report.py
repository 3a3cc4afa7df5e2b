"""Lines of a run that pytest does not report."""

import sys


def say(line: str) -> None:
    """Print a line and flush the output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
