"""The plugin's process: start, signals, end and resource usage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from typing import NamedTuple

import psutil

END = 30.0
"""Seconds after which a signal that ends the process has failed: even a killed one waits for a busy disk (fsync)."""


class Figures(NamedTuple):
    """Resource usage of the process."""

    descriptors: int
    threads: int
    resident: float
    """Megabytes (10^6 bytes)."""

    def above(self, other: Figures) -> Figures:
        """Return the difference to other figures."""
        return Figures(
            self.descriptors - other.descriptors, self.threads - other.threads, self.resident - other.resident
        )


class Plugin:
    """``aosp-plugin serve`` with a configuration file, one process after another."""

    def __init__(self, configuration: str, log: str) -> None:
        self._command = [sys.executable, "-m", "aosp_plugin", "serve", "--config", configuration]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.reads_log = threading.Event()
        """Whether somebody reads the plugin's log."""
        self.reads_log.set()
        self.starts = 0
        self.reloaded = 0.0
        """The monotonic time of the last reload."""
        self.unresponsive = False
        """Whether the plugin cannot respond now: stopped by SIGSTOP, or without free file descriptors."""
        self.stopped = False
        """Whether the plugin is stopped by SIGSTOP."""
        self.ending = False
        """Whether the plugin has got a signal that ends it."""
        self.baseline: Figures | None = None
        """The usage when all invariants held for the first time in this process."""

    async def start(self) -> None:
        """Start a process, after the previous one has ended."""
        output, log = os.pipe()
        threading.Thread(target=self._read_log, args=[output], daemon=True).start()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        finally:
            os.close(log)
        self.starts += 1
        self.unresponsive = self.stopped = self.ending = False
        self.baseline = None

    async def end(self, number: signal.Signals) -> int:
        """End the process with a signal; return its exit code. Raises TimeoutError if it does not end."""
        process = self._running()
        self.ending = True
        if process.returncode is None:
            process.send_signal(number)
            if self.stopped and number is not signal.SIGKILL:
                process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(END):
            return await process.wait()

    async def close(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None:
            await self.end(signal.SIGKILL)

    def _read_log(self, output: int) -> None:
        """Copy what a process logs until it ends. Runs in a thread of its own."""
        with open(output, "rb", buffering=0) as pipe, open(self._log, "ab", buffering=0) as log:
            while data := pipe.read(4096):
                log.write(data)
                self.reads_log.wait()

    def stall_log(self) -> None:
        """Let nobody read the plugin's log, and fill its pipe."""
        self.reads_log.clear()
        log = os.open(f"/proc/{self.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.closing(open(log, "wb", buffering=0)) as pipe:
            while pipe.write(b"\n" * 4096) is not None:
                pass

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the process runs."""
        if self.ended is None:
            self._running().send_signal(number)

    def stop(self) -> None:
        """Stop the process (SIGSTOP)."""
        self.stopped = self.unresponsive = True
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process (SIGCONT)."""
        self.signal(signal.SIGCONT)
        self.stopped = self.unresponsive = False

    def handles(self, number: int) -> bool:
        """Return whether a signal does not end the process: it is blocked, for the thread that handles it."""
        with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as file:
            blocked = next((line.split()[1] for line in file if line.startswith("SigBlk:")), "0")
        return bool(int(blocked, 16) >> (number - 1) & 1)

    @property
    def ended(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._running().returncode

    @property
    def pid(self) -> int:
        """The process's ID."""
        return self._running().pid

    def figures(self) -> Figures:
        """Return the current resource usage."""
        process = psutil.Process(self.pid)
        return Figures(process.num_fds(), process.num_threads(), process.memory_info().rss / 1e6)

    async def processor_share(self, seconds: float) -> float:
        """Return the share of a CPU that the process uses in the next seconds.

        The clock is that of clock_getcpuclockid(3): the PID's complement, and 2 for the scheduler's clock of a process
        (include/linux/posix-timers_types.h, CPUCLOCK_SCHED).
        """
        clock = ~self.pid << 3 | 2
        used, started = time.clock_gettime(clock), time.monotonic()
        await asyncio.sleep(seconds)
        return (time.clock_gettime(clock) - used) / (time.monotonic() - started)

    def log_tail(self, lines: int) -> str:
        """Return the end of the log without lines about RPCs, and without what ``stall_log`` has written."""
        with open(self._log, encoding="utf-8", errors="replace") as log:
            return "".join([line for line in log if line.strip() and "rpc" not in line][-lines:])

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the plugin has not been started")
        return self._process
