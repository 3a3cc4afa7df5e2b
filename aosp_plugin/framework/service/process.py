"""A process: its tasks, its signals, and what it tells systemd.

A thread handles the signals, which does not depend on the event loop. All other threads block them, so that the kernel
delivers them to this one. A signal handler is not enough: the kernel prefers the main thread, which runs no handler
while it waits for a file system that hangs. If the process has not ended in time, because the event loop, a worker
thread or a library hangs, the thread ends it by force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from aosp_plugin.framework import worker
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.timing import GRACE_PERIOD, Stop, wait_any

LOG = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two readings of the state of the resources."""

LOG_WITHIN = 0.1
"""Seconds for the log line of a forced exit: perhaps nobody reads it."""

_EXECUTE = signal.SIGUSR1
"""Lets the thread execute the program again. Only the thread blocks it, so that nobody else can send it this signal."""


class Process:
    """What each process has: signals, systemd, and one group of tasks, none of which fails unnoticed."""

    def __init__(self) -> None:
        """``servers`` are those that run, once there are any."""
        self.stop = Stop()
        """Set by SIGTERM and SIGINT."""
        self.reloading = asyncio.Event()
        """Set before the servers stop in order to execute the program again."""
        self.servers: Sequence[ResourceServer] | None = None

    async def run(
        self, work: Callable[[asyncio.TaskGroup], Awaitable[None]], reload: Callable[[], None] | None = None
    ) -> None:
        """Run ``work`` in the group; it returns when it has ended what it started, after ``stop`` is set.

        SIGHUP calls ``reload``; without, it keeps its effect. Raises the errors of all tasks as a group.
        """
        self._execute_again = stop_on_signals(self.stop.request, reload)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(notify(self._unready, self.stop, self.reloading))
            await work(tasks)

    async def execute_again(self) -> None:
        """Execute the program again, when all else has ended; return if the process is to stop."""
        self._execute_again()
        await self.stop.wait()

    def _unready(self) -> list[str]:
        """Return why the process is not ready, for people."""
        if self.servers is None:
            return ["starting"]
        found = [each for server in self.servers for each in server.conditions()]
        return [each.detail for each in found if each.kind.blocks]


def stop_on_signals(stop: Callable[[], None], reload: Callable[[], None] | None = None) -> Callable[[], None]:
    """Call ``stop`` in the running event loop on SIGTERM and SIGINT, and ``reload`` on SIGHUP.

    Return a function that lets the thread execute the program again, unless it has received a signal to stop before.
    Signals that come then stay pending: the program has to block them, as it is started, until it calls this again.

    A second before SIGKILL would follow, the process is ended with a warning in the log, and with exit code 0: the exit
    was requested, and a busy host is not an error. Call it once, in the main thread, before other threads start: they
    have to inherit its signal mask. So do child processes: a program that terminates its children must use SIGKILL, or
    restore the mask in them.
    """
    callbacks = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if reload is not None:
        callbacks[signal.SIGHUP] = reload
    signal.pthread_sigmask(signal.SIG_BLOCK, callbacks)
    arguments = (asyncio.get_running_loop(), callbacks)
    thread = threading.Thread(target=_handle_signals, args=arguments, name="signals", daemon=True)
    thread.start()
    return partial(signal.pthread_kill, thread.ident or 0, _EXECUTE)


def _handle_signals(loop: asyncio.AbstractEventLoop, callbacks: Mapping[signal.Signals, Callable[[], None]]) -> None:
    """Handle the signals until the process ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {_EXECUTE})
    end: float | None = None
    while end is None or time.monotonic() < end:
        if end is None:
            number = signal.Signals(signal.sigwait({*callbacks, _EXECUTE}))
        else:
            received = signal.sigtimedwait(callbacks, max(0.0, end - time.monotonic()))
            if received is None:
                continue
            number = signal.Signals(received.si_signo)
        if number == _EXECUTE:
            _execute_again()
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(callbacks[number])
        if number != signal.SIGHUP and end is None:
            end = time.monotonic() + GRACE_PERIOD - 1.0
    _exit_by_force()


def _execute_again() -> None:
    """Execute the program of this process, with its arguments. Exit with an error if that is impossible."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {_EXECUTE})
    logs.drain()
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this program
    except OSError as error:
        LOG.error("program cannot be executed again", extra={"path": sys.executable, "error": str(error)})  # noqa: TRY400 - no bug
        logs.drain()
        os._exit(1)


def _exit_by_force() -> None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented
    last = traceback.extract_stack(frame)[-1] if frame else None
    main_thread = [f"main thread in {last.name} ({os.path.basename(last.filename)}:{last.lineno})"] if last else []
    LOG.warning("forced exit", extra={"running": "; ".join([*worker.running_calls(), *main_thread])})
    logs.drain(LOG_WITHIN)
    os._exit(0)


async def notify(
    unready: Callable[[], Collection[str]],
    stop: asyncio.Event,
    reloading: asyncio.Event,
    environment: Mapping[str, str] = os.environ,
    interval: float = INTERVAL,
) -> None:
    """Notify systemd until ``stop`` or ``reloading`` is set, if the process is a service of Type=notify (sd_notify(3)).

    Sends READY=1 once ``unready`` returns no cause, and the causes as the status. Sends WATCHDOG=1 whatever they are:
    only a stuck event loop or the end of the task misses it, and systemd restarts the service. The last message is
    STOPPING=1, or RELOADING=1: the reload lasts until the program that is executed next sends READY=1.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    timeout = watchdog_timeout(environment, os.getpid())
    pause = min(interval, timeout / 2) if timeout else interval  # as sd_notify(3) recommends
    sent_status, ready = None, False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:  # kept: later, no descriptor may be free
        sender.settimeout(0.0)
        try:
            while not (stop.is_set() or reloading.is_set()):
                causes = unready()
                status = " ".join("; ".join(causes or ["registered"]).split())
                lines = ["READY=1"] if not (ready or causes) else []
                lines += [f"STATUS={status}"] if status != sent_status else []
                lines += ["WATCHDOG=1"] if timeout else []
                if not lines or _send(sender, address, *lines):
                    sent_status, ready = status, ready or not causes
                await wait_any(stop, reloading, timeout=pause)
        finally:
            if reloading.is_set() and not stop.is_set():
                _send(sender, address, "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            else:
                _send(sender, address, "STOPPING=1")


def watchdog_timeout(environment: Mapping[str, str], pid: int) -> float:
    """Return the watchdog timeout in seconds; 0 if systemd does not watch this process."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    watched = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
    return int(microseconds) / 1e6 if watched and microseconds.isdecimal() else 0.0


def _send(sender: socket.socket, address: str, *lines: str) -> bool:
    """Send to a path, or to an abstract socket if it starts with "@"; return whether that succeeded."""
    try:
        sender.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
    except OSError as error:
        LOG.debug("systemd notification failed", extra={"path": address, "error": str(error)})
        return False
    return True
