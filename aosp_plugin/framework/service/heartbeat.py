"""Watchdog of the event loop: a task records a timestamp every second, and other threads check its age."""

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
"""Seconds without a beat after which the loop counts as stuck. No single callback takes nearly as long."""

GRACE = 2.0
"""Seconds to wait for an overdue beat. A process that was stopped (SIGSTOP, cgroup freezer, paused virtual machine)
finds an old beat when it continues, and no clock distinguishes that from a stuck loop; but a running loop beats at
once. Shorter than the timeout of the probes in the manifests (5 s)."""


class Heartbeat:
    """The heartbeat of one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, grace: float = GRACE) -> None:
        """Count from now on. ``clock`` and ``grace`` are in seconds."""
        self._clock = clock
        self._grace = grace
        self._condition = threading.Condition()
        self._last = clock()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(INTERVAL)

    def beat(self) -> None:
        """Record that the loop runs."""
        with self._condition:
            self._last = self._clock()
            self._condition.notify_all()

    def problem(self) -> str:
        """Return for how long the loop has been stuck; empty if it is not.

        Waits for an overdue beat, so it must not be called in the loop's own thread.
        """
        with self._condition:
            last = self._last
            overdue = self._clock() - last > LIMIT
            if overdue and not self._condition.wait_for(lambda: self._last != last, self._grace):
                return f"the event loop has been stuck for {self._clock() - last:.0f} s"
        return ""
