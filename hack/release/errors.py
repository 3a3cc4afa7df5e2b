"""The error of a release that cannot be built."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ReleaseError(Exception):
    """The release cannot be built; the message says why, and what to do."""


def run(*command: str, cwd: Path) -> str:
    """Run a command and return its output. Raises ReleaseError with its messages if it fails."""
    try:
        result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ReleaseError(f"{command[0]} cannot be run: {error}") from error
    if result.returncode:
        messages = (result.stderr or result.stdout).strip()[-3000:]
        raise ReleaseError(f"{' '.join(command)} failed with exit code {result.returncode}:\n{messages}")
    return result.stdout
