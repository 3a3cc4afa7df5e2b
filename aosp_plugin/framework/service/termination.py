"""Signals of a process, handled by a thread that does not depend on the event loop.

All other threads block the signals, so that the kernel delivers them to this one. A handler would not do: the kernel
prefers the main thread, which runs no handler while it waits for a file system that hangs. If the process has not ended
in time, because the event loop, a worker thread or a library hangs, the thread ends it by force.
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

from aosp_plugin.framework import worker
from aosp_plugin.framework.timings import GRACE_PERIOD

LOG = logging.getLogger(__name__)

LOG_WITHIN = 0.1
"""Seconds for the log line of a forced exit: the pipe behind standard error may be full."""


def stop_on_signals(stop: Callable[[], None], reload: Callable[[], None] | None = None) -> None:
    """Call ``stop`` in the running event loop on SIGTERM and SIGINT, and ``reload`` on SIGHUP.

    A second before SIGKILL would follow, the process is ended with a warning in the log, and with exit code 0, because
    it was to end: a host that is too busy for the orderly end is no fault of the process. To be called once, in the
    main thread, before other threads start: they have to inherit its signal mask. So do child processes: a program that
    terminates its children must use SIGKILL, or restore the mask in them.
    """
    callbacks = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if reload is not None:
        callbacks[signal.SIGHUP] = reload
    signal.pthread_sigmask(signal.SIG_BLOCK, callbacks)
    arguments = (asyncio.get_running_loop(), callbacks)
    threading.Thread(target=_handle_signals, args=arguments, name="signals", daemon=True).start()


def _handle_signals(loop: asyncio.AbstractEventLoop, callbacks: Mapping[signal.Signals, Callable[[], None]]) -> None:
    """Handle the signals until the process ends."""
    end: float | None = None
    while end is None or time.monotonic() < end:
        if end is None:
            number = signal.Signals(signal.sigwait(callbacks))
        else:
            received = signal.sigtimedwait(callbacks, max(0.0, end - time.monotonic()))
            if received is None:
                continue
            number = signal.Signals(received.si_signo)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(callbacks[number])
        if number != signal.SIGHUP and end is None:
            end = time.monotonic() + GRACE_PERIOD - 1.0
    _exit_by_force()


def _exit_by_force() -> None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented
    last = traceback.extract_stack(frame)[-1] if frame else None
    main_thread = [f"main thread in {last.name} ({os.path.basename(last.filename)}:{last.lineno})"] if last else []
    running = "; ".join([*worker.running_calls(), *main_thread])

    def log() -> None:
        LOG.warning("forced exit", extra={"running": running})

    logging_thread = threading.Thread(target=log, daemon=True)
    logging_thread.start()
    logging_thread.join(LOG_WITHIN)
    os._exit(0)
