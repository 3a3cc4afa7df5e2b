"""The time of everything that waits: an argument, so that tests can let it pass."""

from __future__ import annotations

import asyncio
import time

from aosp_plugin.framework.aio import wait_any


class Clock:
    """The time of the system."""

    def __call__(self) -> float:
        """Return the time in seconds, which is never set back. May be called in any thread."""
        return time.monotonic()

    async def wait(self, *events: asyncio.Event, timeout: float | None = None) -> bool:
        """Wait until one of ``events`` is set; return False if none is after ``timeout`` seconds."""
        return await wait_any(*events, timeout=timeout)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


CLOCK = Clock()
