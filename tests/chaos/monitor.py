"""What must hold at every moment, not only after a step: the process answers probes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import background_task
from tests.chaos.registry import ViolationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.chaos.world import World

INTERVAL = 0.1
"""Seconds between two probes."""

ANSWER = 10.0
"""Seconds after which a request without an answer has failed. They are many, because the machine is busy."""


class Monitor:
    """Watches the process of a world. The first violation stays until it is raised."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._violation = ""
        self._started = 0
        self._answered = False

    def check(self) -> None:
        """Raise ViolationError if something was wrong at any time so far."""
        if self._violation:
            raise ViolationError(self._violation)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch while the context lasts."""
        async with background_task(self._watch()):
            yield

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            plugin = self._world.plugin
            if plugin.starts != self._started:
                self._started, self._answered = plugin.starts, False
            if not (plugin.ending or plugin.ended is not None or plugin.unresponsive):
                await self._probe()

    async def _probe(self) -> None:
        """Request /healthz. A process that has answered once must answer 200 as long as it lives.

        After a reload, nobody may answer for a while: the process executes its program again.
        """
        plugin = self._world.plugin
        answer = await get(self._world.port, "/healthz")
        if plugin.starts != self._started or plugin.unresponsive or plugin.ending or plugin.ended is not None:
            return
        succeeded = succeeds(answer)
        is_expected = self._answered and time.monotonic() > plugin.reloaded + ANSWER
        if not succeeded and (is_expected or answer.startswith("HTTP")):
            self._violation = self._violation or f"/healthz: {' '.join(answer.split())[-200:]}"
        self._answered |= succeeded


def succeeds(answer: str) -> bool:
    """Return whether the status of an answer is 200."""
    return "200" in answer.partition("\n")[0].split()


async def get(port: int, path: str) -> str:
    """Return the response to an HTTP request, or the reason why there is none."""
    try:
        async with asyncio.timeout(ANSWER):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return (await reader.read()).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        return f"no response: {error!r}"
