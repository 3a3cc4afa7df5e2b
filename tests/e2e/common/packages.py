"""What a machine lacks: Debian's packages, installed where they can be, and the ways in which a part can't be had."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING

from tests.e2e.common.report import say

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class MissingError(Exception):
    """A part is not here and can't be brought here."""


class BrokenError(Exception):
    """A part that this project makes can't be made."""


def install(packages: Iterable[str]) -> None:
    """Install the packages that are missing. Raises MissingError."""
    if not shutil.which("apt-get"):
        raise MissingError(f"no apt-get, which brings {', '.join(packages)}")
    missing = [name for name in packages if not _installed(name)]
    if missing:
        say(f"# apt-get install {' '.join(missing)}")
        update()
        command("apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *missing, seconds=1800)


@cache
def update() -> None:
    """Have apt-get know what there is. Raises MissingError."""
    command("apt-get", "update", "--quiet", seconds=600)


def command(
    *words: str,
    seconds: float = 300,
    directory: Path | None = None,
    check: bool = True,
    error: type[Exception] = MissingError,
) -> str:
    """Run a command, and return what it prints. Raises ``error`` with the end of what it said."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            words, cwd=directory, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as reason:
        raise error(f"{words[0]}: {reason}") from reason
    if check and done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-500:]
        raise error(f"{' '.join(words[:3])} … ended with {done.returncode}: {said}")
    return done.stdout


def _installed(package: str) -> bool:
    return "ok installed" in command("dpkg-query", "--show", "--showformat", "${Status}", package, check=False)
