"""Signals of a process, handled by a thread that does not depend on the event loop.

All other threads block the signals, so that the kernel delivers them to this one. A signal handler is not enough: the
kernel prefers the main thread, which runs no handler while it waits for a file system that hangs. If the process has
not ended in time, because the event loop, a worker thread or a library hangs, the thread ends it by force.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial

from aosp_plugin.framework import worker
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.timing import GRACE_PERIOD

LOG = logging.getLogger(__name__)

LOG_WITHIN = 0.1
"""Seconds for the log line of a forced exit: perhaps nobody reads it."""


_EXECUTE = signal.SIGUSR1
"""Lets the thread execute the program again. Only the thread blocks it, so that nobody else can send it this signal."""


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
