"""Where chaos happens: namespaces of its own, in which mounts and limits are nobody else's."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INSIDE = "AOSP_CHAOS_INSIDE"
"""Environment variable: set once the namespaces are entered, or could not be."""

NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount")

INOTIFY_LIMITS = "/proc/sys/user/max_inotify_"
"""Those of the user namespace that reads or writes them (kernel/ucount.c)."""


def enter(arguments: Sequence[str]) -> bool:
    """Begin anew with these arguments in a user and a mount namespace; return False where there can't be any."""
    if INSIDE in os.environ:
        return bool(os.environ[INSIDE])
    possible = shutil.which(NAMESPACES[0]) is not None
    if possible and not subprocess.run([*NAMESPACES, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        command = [*NAMESPACES, sys.executable, "-m", "tests.chaos", *arguments]
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})  # noqa: S606 - our own
    return False


def mount(directory: str, options: str = "") -> None:
    """Mount an empty file system over a directory."""
    with_options = ["-o", options] if options else []
    subprocess.run(["mount", "-t", "tmpfs", *with_options, "chaos", directory], check=True)


def unmount(directory: str) -> None:
    """Take it away again, whoever uses it."""
    subprocess.run(["umount", "--lazy", directory], check=True)


@contextlib.contextmanager
def inotify_limited(what: str, limit: int) -> Iterator[None]:
    """Let the namespace have so many of what inotify has, ``instances`` or ``watches``, while the context lasts."""
    path = INOTIFY_LIMITS + what
    with open(path, encoding="ascii") as file:
        before = file.read()
    _write(path, str(limit))
    try:
        yield
    finally:
        _write(path, before)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
