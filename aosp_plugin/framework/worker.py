"""A thread that runs blocking calls for the event loop, one after another."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.errors import PluginError, WorkerTimeoutError
from aosp_plugin.framework.observer import LastingProblem, milliseconds
from aosp_plugin.framework.timings import CLOCK, Clock

LOG = logging.getLogger(__name__)

T = TypeVar("T")


_workers_lock = threading.Lock()  # for the next one
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def running_calls() -> list[str]:
    """Return which calls are running now in the worker threads of the process. May be called in any thread."""
    with _workers_lock:
        calls = [(each.name, each.current) for each in _workers]
    return [f"{call[0]} of {name} for {time.monotonic() - call[1]:.1f} s" for name, call in calls if call is not None]


class Worker:
    """One daemon thread, started by the first call.

    A call that hangs, for example on a file system that does not answer, delays the calls behind it, but neither the
    event loop nor the end of the process.
    """

    def __init__(self, name: str) -> None:
        """``name`` is the name of the thread."""
        self.name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()  # for the next one
        self._thread: threading.Thread | None = None
        self.current: tuple[str, float] | None = None
        """Label and start of the running call (``time.monotonic``); replaced by a single assignment, for any thread."""
        with _workers_lock:
            _workers.add(self)

    async def run(self, function: Callable[[], T], timeout: float | None = None, *, label: str = "call") -> T:
        """Run ``function`` in the thread, and return its result or raise its error. To be used in the event loop.

        The function has the context variables of the caller. ``timeout`` is in seconds and includes the time in the
        queue. Raises WorkerTimeoutError after it. A call that has not started then never runs; a call that runs goes
        on, its result is dropped, and the next call waits for its end. The same goes for a caller that is cancelled.
        ``label`` names the call in error messages and in ``hanging``.
        """
        future = self._enqueue(function, label)
        result = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({result}, timeout=timeout)
            if done:
                return result.result()
        finally:
            future.cancel()  # no effect on a call that runs
            # From Python 3.14 on, the first cancellation cancels the result at once.
            if not result.cancel() and not result.cancelled():
                result.exception()  # mark it as retrieved, or asyncio would log it
        raise self._timeout(label, timeout)

    def hanging(self, limit: float) -> str:
        """Return which call has been running for more than ``limit`` seconds; empty if none. For any thread."""
        current = self.current
        seconds = 0.0 if current is None else time.monotonic() - current[1]
        return f"{current[0]} has been hanging for {seconds:.0f} s" if current is not None and seconds > limit else ""

    def close(self, last: Callable[[], None] | None = None) -> None:
        """End the thread after the calls that are waiting, and after the call of ``last``. No call may follow."""
        if last is not None:
            self._calls.put(last)
        self._calls.put(None)

    def _enqueue(self, function: Callable[[], T], label: str) -> Future[T]:
        """Let the thread run a call after those before it; start the thread if this is the first one."""
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                thread.start()
                self._thread = thread
        future: Future[T] = Future()
        self._calls.put(partial(contextvars.copy_context().run, self._execute, function, label, future))
        return future

    def _timeout(self, label: str, timeout: float | None) -> WorkerTimeoutError:
        current = self.current
        waited = "" if current is None or current[0] == label else f" because of a {current[0]} that has not ended"
        return WorkerTimeoutError(f"{label} timed out after {timeout:g} s{waited}")

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # the thread must not keep the result until the next call

    def _execute(self, function: Callable[[], T], label: str, future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self.current = (label, time.monotonic())
        try:
            report = partial(future.set_result, function())
        except StopIteration as error:  # a future of asyncio rejects it
            report = partial(future.set_exception, RuntimeError(f"{label}: {error!r}"))
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            report = partial(future.set_exception, error)
        self.current = None
        report()


class HostCall:
    """One kind of call. Belongs to one event loop."""

    def __init__(
        self,
        worker: Worker,
        label: str,
        *,
        limit: float,
        retried: bool = True,
        on_hang: Callable[[float], object] = lambda _seconds: None,
        clock: Clock = CLOCK,
        **fields: object,
    ) -> None:
        """``label`` names the call in messages. ``retried``: a failure is a problem until the next call succeeds.

        After ``limit`` seconds, a call counts as hanging. ``on_hang`` is then called with the seconds, once for each
        hang; ``fields`` are those of its log record.
        """
        self._worker = worker
        self._label = label
        self._hang = LastingProblem(LOG, f"{label} is hanging", f"{label} is no longer hanging", logging.ERROR)
        self._limit = limit
        self._failure = LastingProblem(LOG, f"{label} failed, retrying", f"{label} recovered", logging.ERROR)
        self._retried = retried
        self._on_hang = on_hang
        self._clock = clock
        self._fields = fields
        self._hanging_since = 0.0

    @property
    def problem(self) -> str:
        """What hangs or has failed; empty if nothing. May be read in any thread."""
        if self._hang.text:
            return f"{self._hang.text} for {self._clock() - self._hanging_since:.0f} s"
        return self._failure.text

    async def run(self, function: Callable[[], T], timeout: float | None = None) -> T:
        """Run a call in the worker thread, and return its result.

        Raises what the call raises; WorkerTimeoutError after ``timeout`` seconds.
        """
        started = self._clock()
        async with background_task(self._worker.run(function, timeout, label=self._label)) as call:
            done, _ = await asyncio.wait({call}, timeout=self._limit)
            if not done:
                self._hangs(started)
            try:
                result = await call
            except WorkerTimeoutError:
                self._hangs(started)
                raise
            except (OSError, PluginError) as error:
                self._returned(str(error))
                raise
        self._returned("")
        return result

    def _hangs(self, since: float) -> None:
        if self._hang.text:  # another call has reported it
            return
        self._hanging_since = since
        seconds = self._clock() - since
        self._hang.set(f"{self._label} has been hanging", duration_ms=milliseconds(seconds), **self._fields)
        self._on_hang(seconds)

    def _returned(self, error: str) -> None:
        if self._hang.text:
            self._hang.set("", duration_ms=milliseconds(self._clock() - self._hanging_since))
        if error and self._retried:
            self._failure.set(f"{self._label} failed: {error}", error=error)
        else:
            self._failure.set("")
