"""The plugin of the demo: ``aosp-plugin serve`` in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Self

from aosp_plugin.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

STOP_TIMEOUT = 20.0
"""Seconds in which the plugin has to end after SIGTERM. It takes a small part of one second, if the machine is idle."""


class DemoError(PluginError):
    """A step of the demo failed."""


class PluginProcess:
    """A process of the plugin: an async context manager, which kills it at the end if it still runs."""

    def __init__(
        self,
        flags: Sequence[str],
        variables: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
        on_failure: Callable[[int], None] | None = None,
    ) -> None:
        """Prepare ``serve`` with these flags and variables.

        ``on_line`` is called with each line that it logs, ``on_failure`` with its exit code if it ends unasked.
        """
        self.log: list[str] = []
        """The lines that it has logged."""
        self._command = [sys.executable, "-m", "aosp_plugin", "serve", *flags]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AOSP_PLUGIN_")}
        self._environment = inherited | dict(variables or {})
        self._on_line = on_line
        self._on_failure = on_failure
        self._ending = False
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start the process."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process if it still runs, and read its log to the end."""
        await self.kill()

    async def start(self) -> None:
        """Start the process."""
        # A process group of its own: Ctrl-C in a terminal interrupts the demo, which then stops the plugin.
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            process_group=0,
        )
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        self._reader = asyncio.create_task(self._read(self._process.stdout))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = line.decode(errors="replace").rstrip("\n")
            self.log.append(text)
            if self._on_line is not None:
                self._on_line(text)
        if not self._ending and self._on_failure is not None and self._process is not None:
            self._on_failure(await self._process.wait())

    async def exited(self) -> int:
        """Wait until the process has ended and its log is read, and return its exit code."""
        assert self._process is not None  # noqa: S101 - as above
        assert self._reader is not None  # noqa: S101 - as above
        await asyncio.wait({self._reader})
        return await self._process.wait()

    async def stop(self) -> int:
        """End the process with SIGTERM and return its exit code. Raises TimeoutError."""
        if self._process is None:
            return 0
        self._send(signal.SIGTERM)
        return await asyncio.wait_for(self.exited(), STOP_TIMEOUT)

    async def kill(self) -> None:
        """End the process with SIGKILL, unless it has not been started."""
        self._send(signal.SIGKILL)
        if self._process is not None:
            await self.exited()

    def _send(self, number: signal.Signals) -> None:
        self._ending = True
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
