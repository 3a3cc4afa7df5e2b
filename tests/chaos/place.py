"""The namespaces of a run, which keep limits and ports away from the rest of the machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INSIDE = "AOSP_CHAOS_INSIDE"
"""The environment variable that is set inside the namespaces."""

NAMESPACES = ("unshare", "--user", "--map-root-user", "--net")

SIOCSIFFLAGS, IFF_UP = 0x8914, 1

INOTIFY_LIMITS = "/proc/sys/user/max_inotify_"
"""The limits of the user namespace that reads or writes them (kernel/ucount.c)."""


def enter(arguments: Sequence[str]) -> bool:
    """Execute the program again in user and network namespaces; return False if namespaces are not available."""
    if INSIDE in os.environ:
        if os.environ[INSIDE]:
            _enable_loopback()
        return bool(os.environ[INSIDE])
    possible = shutil.which(NAMESPACES[0]) is not None
    if possible and not subprocess.run([*NAMESPACES, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        command = [*NAMESPACES, sys.executable, "-m", "tests.chaos", *arguments]
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})  # noqa: S606 - our own
    return False


def _enable_loopback() -> None:
    """Bring up the loopback interface of the network namespace, where no other process takes ports."""
    with socket.socket() as interfaces:
        request = struct.pack("16sH22x", b"lo", IFF_UP)  # struct ifreq (linux/if.h)
        fcntl.ioctl(interfaces, SIOCSIFFLAGS, request)


@contextlib.contextmanager
def inotify_limited(what: str, limit: int) -> Iterator[None]:
    """Limit inotify's ``instances`` or ``watches`` in the namespace while the context lasts."""
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
