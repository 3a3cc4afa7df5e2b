"""Install missing Debian packages, and the errors that say why a part is unavailable.

``python -m tests.e2e.common.packages NAME...`` installs these packages, or says how.
"""

import os
import shutil
import subprocess
import sys
import time
import unittest
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.e2e.common import cache
from tests.e2e.common.report import say

_LISTS: Final = Path("/var/lib/apt/lists")
_FRESH: Final = 3600.0
"""Seconds; a stage of CI uses the package lists of the previous one."""


class MissingError(unittest.SkipTest):
    """This machine does not have a part and cannot get it. pytest reports the test as skipped."""


class BrokenError(Exception):
    """The build of a part failed."""


def install(packages: Iterable[str]) -> None:
    """Install the packages that are missing, if INSTALL_PACKAGES=yes permits it. Raises MissingError."""
    if not shutil.which("apt-get"):
        raise MissingError(f"requires apt-get, to install {', '.join(packages)}")
    missing = [name for name in packages if not _installed(name)]
    if missing:
        if os.environ.get("INSTALL_PACKAGES") != "yes":
            raise MissingError(f"run apt-get install {' '.join(missing)}, or set INSTALL_PACKAGES=yes")
        say(f"# apt-get install {' '.join(missing)}")
        update()
        wait = "--option=DPkg::Lock::Timeout=900"  # for what else installs packages on this machine
        with cache.exclusive("apt"):
            command("apt-get", wait, "install", "--quiet", "--yes", "--no-install-recommends", *missing, seconds=1800)


def update() -> None:
    """Update apt's package lists, unless this was done within the last hour. Raises MissingError."""
    stamp = cache.root() / ".apt-update"
    with cache.exclusive("apt"):  # apt-get does not wait for another one
        fresh = stamp.exists() and time.time() - stamp.stat().st_mtime < _FRESH
        if not fresh or not any(_LISTS.glob("*_Packages*")):
            command("apt-get", "update", "--quiet", seconds=600)
            stamp.touch()


def command(
    *words: str,
    seconds: float = 300,
    directory: Path | None = None,
    text: str | None = None,
    check: bool = True,
    error: type[Exception] = MissingError,
) -> str:
    """Run a command with ``text`` as its input, and return its output.

    Raises ``error`` with the end of the command's messages.
    """
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        result = subprocess.run(
            words,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            input=text,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise error(f"{words[0]}: {failure}") from failure
    if check and result.returncode:
        messages = " ".join((result.stderr or result.stdout).split())[-2000:]
        raise error(f"{' '.join(words[:3])} … ended with {result.returncode}: {messages}")
    return result.stdout


def _installed(package: str) -> bool:
    return "ok installed" in command("dpkg-query", "--show", "--showformat", "${Status}", package, check=False)


if __name__ == "__main__":
    try:
        install(sys.argv[1:])
    except MissingError as error:
        sys.exit(str(error))
