"""The plugin's process: started, signalled, ended, and measured from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping


class Figures(NamedTuple):
    """What the process has of what is scarce."""

    descriptors: int
    threads: int
    resident: float
    """Megabytes (10^6 bytes)."""

    def above(self, other: Figures) -> Figures:
        """Return by how much these are more than others."""
        return Figures(
            self.descriptors - other.descriptors, self.threads - other.threads, self.resident - other.resident
        )


class Plugin:
    """``aosp-plugin serve`` with a configuration file, one process after another."""

    def __init__(self, configuration: str, log: str, environment: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-m", "aosp_plugin", "serve", "--config", configuration]
        self._log = log
        self._environment = {**os.environ, **environment}
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0
        self.deaf = False
        """Whether nobody gets an answer for now: it is stopped (SIGSTOP), or out of descriptors."""
        self.baseline: Figures | None = None
        """What this process had once all was well for the first time."""
        self.grown = Figures(0, 0, 0.0)
        """The most by which any process was above its baseline."""

    async def start(self) -> None:
        """Start a process; the one before has ended."""
        with open(self._log, "ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.starts += 1
        self.deaf = False
        self.baseline = None

    async def end(self, number: signal.Signals) -> int:
        """End the process with a signal; return its exit code. TimeoutError where it doesn't end."""
        process = self._running()
        if process.returncode is None:
            process.send_signal(number)
            if self.deaf and number is not signal.SIGKILL:
                process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(10):
            return await process.wait()

    async def close(self) -> None:
        """End whatever runs."""
        if self._process is not None:
            await self.end(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process is there."""
        if self.ended is None:
            self._running().send_signal(number)

    def catches(self, number: int) -> bool:
        """Say whether the process is far enough to be sent a signal that would end it before."""
        with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
        return bool(int(caught, 16) >> (number - 1) & 1)

    @property
    def ended(self) -> int | None:
        """The exit code of a process that has ended; None: it runs."""
        return self._running().returncode

    @property
    def pid(self) -> int:
        """The process's ID."""
        return self._running().pid

    def note(self, grown: Figures) -> None:
        """Keep by how much a process is above its baseline, where that is the most so far."""
        most = self.grown
        self.grown = Figures(
            max(most.descriptors, grown.descriptors),
            max(most.threads, grown.threads),
            max(most.resident, grown.resident),
        )

    def figures(self) -> Figures:
        """Return what the process has now."""
        process = psutil.Process(self.pid)
        return Figures(process.num_fds(), process.num_threads(), process.memory_info().rss / 1e6)

    async def processor_share(self, seconds: float) -> float:
        """Return the share of a processor that it uses over so many seconds from now on.

        The clock is that of clock_getcpuclockid(3): the PID's complement, and 2 for the scheduler's clock of a process
        (include/linux/posix-timers_types.h, CPUCLOCK_SCHED).
        """
        clock = ~self.pid << 3 | 2
        used, started = time.clock_gettime(clock), time.monotonic()
        await asyncio.sleep(seconds)
        return (time.clock_gettime(clock) - used) / (time.monotonic() - started)

    def said(self, lines: int) -> str:
        """Return the end of the log, but for the RPCs, of which chaos itself makes most."""
        with open(self._log, encoding="utf-8", errors="replace") as log:
            return "".join([line for line in log if "rpc" not in line][-lines:])

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the plugin was never started")
        return self._process
