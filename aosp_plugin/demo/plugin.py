"""The plugin of the demo: ``aosp-plugin serve`` in a process of its own."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import click

START_TIMEOUT = STOP_TIMEOUT = 20.0
"""Seconds in which the plugin has to register, and to end. Both take a small part of one second on an idle machine."""


class DemoError(click.ClickException):
    """A step of the demo failed."""


class PluginProcess:
    """A process of the plugin: an async context manager, which kills it at the end if it still runs."""

    def __init__(
        self, flags: Sequence[str], variables: Mapping[str, str] | None = None, log: Callable[[str], object] = print
    ) -> None:
        """Prepare ``serve`` with these flags and variables. ``log`` is called with each line that it logs."""
        self._command = [sys.executable, "-m", "aosp_plugin", "serve", *flags]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AOSP_PLUGIN_")}
        self._environment = inherited | dict(variables or {})
        self._log = log

    async def __aenter__(self) -> Self:
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
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process if it still runs, and read its log to the end."""
        self.kill()
        await self.exited()

    async def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        async for line in self._process.stdout:
            self._log(line.decode(errors="replace").rstrip("\n"))

    async def exited(self) -> int:
        """Wait until the process has ended and its log is read, and return its exit code."""
        await asyncio.wait({self._reader})
        return await self._process.wait()

    async def stop(self) -> int:
        """End the process with SIGTERM and return its exit code. Raises TimeoutError."""
        self._process.terminate()
        return await asyncio.wait_for(self.exited(), STOP_TIMEOUT)

    def kill(self) -> None:
        """Send SIGKILL to the process, unless it has ended."""
        if self._process.returncode is None:
            self._process.kill()
