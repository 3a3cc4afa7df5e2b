"""What must hold at every moment, not only after a step: the process answers probes and feeds systemd's watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

from tests.chaos.registry import ViolationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.chaos.world import World

INTERVAL = 0.1
"""Seconds between two probes."""

ANSWER = 10.0
"""Seconds after which a request without an answer has failed. They are many, because the machine is busy."""

WATCHDOG = 10.0
"""The timeout of systemd's watchdog in seconds. systemd kills a service that is silent for longer."""


class Monitor:
    """Watches the process of a world. The first violation stays until it is raised."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._violation = ""
        self._fed = time.monotonic()
        self._started = 0
        self._answered = False
        self.notify_socket = os.path.join(world.root, "notify")
        self.ready = False
        """Whether the process has sent READY=1."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which systemd asks a service for notifications."""
        return {"NOTIFY_SOCKET": self.notify_socket, "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))}

    def check(self) -> None:
        """Raise ViolationError if something was wrong at any time so far."""
        if self._violation:
            raise ViolationError(self._violation)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch while the context lasts."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(self.notify_socket)
            notified.setblocking(False)  # noqa: FBT003 - the only argument
            loop = asyncio.get_running_loop()
            loop.add_reader(notified, self._receive, notified)
            task = asyncio.create_task(self._watch())
            try:
                yield
            finally:
                loop.remove_reader(notified)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _receive(self, notified: socket.socket) -> None:
        lines = notified.recv(4096).decode().splitlines()
        self.ready |= "READY=1" in lines
        if "WATCHDOG=1" in lines:
            self._fed = time.monotonic()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            plugin = self._world.plugin
            if plugin.starts != self._started:
                self._started, self._answered, self.ready, self._fed = plugin.starts, False, False, time.monotonic()
            if plugin.stopped or plugin.ending or plugin.ended is not None:
                self._fed = time.monotonic()
                continue
            if time.monotonic() - self._fed > WATCHDOG:
                await asyncio.sleep(INTERVAL)  # the message may wait, because this loop was busy
                if time.monotonic() - self._fed > WATCHDOG and not plugin.stopped:
                    self._violation = self._violation or f"no WATCHDOG=1 for {time.monotonic() - self._fed:.1f} s"
            if not plugin.unresponsive:
                await self._probe()

    async def _probe(self) -> None:
        """Request /healthz. A process that has answered once must answer 200 as long as it lives."""
        plugin = self._world.plugin
        answer = await get(self._world.port, "/healthz")
        if plugin.starts != self._started or plugin.unresponsive or plugin.ending or plugin.ended is not None:
            return
        succeeded = succeeds(answer)
        if not succeeded and (self._answered or answer.startswith("HTTP")):
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
