"""Reads single keys from a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

END = ""
"""What the queue has when the terminal is gone."""


@contextlib.asynccontextmanager
async def keys() -> AsyncIterator[asyncio.Queue[str] | None]:
    """Provide the keys that are pressed; None if standard input is no terminal, or if this is a background job.

    The keys are not echoed meanwhile. At the end the terminal has its previous settings.
    """
    descriptor = _terminal()
    if descriptor is None:
        yield None
        return
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()
    pressed: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        try:
            data = os.read(descriptor, 1024)
        except OSError:  # EIO: the terminal was closed
            data = b""
        for key in data.decode(errors="ignore"):
            pressed.put_nowait(key)
        if not data:
            loop.remove_reader(descriptor)
            pressed.put_nowait(END)

    def take() -> None:
        tty.setcbreak(descriptor)

    take()
    loop.add_reader(descriptor, read)
    loop.add_signal_handler(signal.SIGCONT, take)  # after Ctrl-Z and fg, the terminal has the shell's settings
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGCONT)
        loop.remove_reader(descriptor)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _terminal() -> int | None:
    """Return the descriptor of standard input, if it is a terminal whose settings may be changed."""
    try:
        descriptor = sys.stdin.fileno()
        # Changing the settings from a background job would stop the process (SIGTTOU).
        return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (AttributeError, OSError, ValueError):  # closed, or no terminal
        return None
