"""Does the event loop still turn? Told by a beat that it leaves every second, to whoever asks from another thread."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL = 1.0
"""Seconds between two beats."""

LIMIT = 10.0
"""Seconds without a beat after which the loop counts as stuck. Nothing that it does itself takes nearly as long."""

DOUBT = 2.0
"""Seconds in which a beat may still come where it is overdue. A process that was stopped (SIGSTOP, the freezer of its
cgroup, a virtual machine's pause) finds its last beat old when it goes on, and no clock tells that from a loop that is
stuck; but a loop that is not beats at once. Less than the manifests' probes wait for their answer (5 s)."""


class Heartbeat:
    """The beat of one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, doubt: float = DOUBT) -> None:
        """``clock`` and ``doubt`` are in seconds; the beat counts from now on."""
        self._clock = clock
        self._doubt = doubt
        self._beaten = threading.Condition()
        self._last = clock()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(INTERVAL)

    def beat(self) -> None:
        """Show that the loop turns."""
        with self._beaten:
            self._last = self._clock()
            self._beaten.notify_all()

    def problem(self) -> str:
        """Say for how long the loop has been stuck; nothing where it is not.

        For any thread but the loop's own: where the beat is overdue, it is waited for.
        """
        with self._beaten:
            last = self._last
            overdue = self._clock() - last > LIMIT
            if overdue and not self._beaten.wait_for(lambda: self._last != last, self._doubt):
                return f"the event loop has been stuck for {self._clock() - last:.0f} s"
        return ""
