"""A thread that runs blocking calls for the event loop, one after another."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.clock import CLOCK, Clock
from aosp_plugin.framework.conditions import Condition, Conditions, Kind
from aosp_plugin.framework.errors import PluginError, WorkerTimeoutError
from aosp_plugin.framework.observer import milliseconds

T = TypeVar("T")


_workers_lock = threading.Lock()  # guards _workers
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def running_calls(longer_than: float = 0.0) -> list[str]:
    """Return the calls that run in the worker threads of the process, for ``longer_than`` seconds.

    May be called in any thread.
    """
    with _workers_lock:
        calls = [(each.name, each.current) for each in _workers]
    ages = [(f"{call[0]} of {name}", time.monotonic() - call[1]) for name, call in calls if call is not None]
    return [f"{call} for {seconds:.1f} s" for call, seconds in ages if seconds >= longer_than]


class Worker:
    """One daemon thread, started by the first call.

    A call that hangs, for example on a file system that does not answer, delays the calls behind it, but neither the
    event loop nor the end of the process.
    """

    def __init__(self, name: str) -> None:
        """``name`` is the name of the thread."""
        self.name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()  # guards _thread
        self._thread: threading.Thread | None = None
        self.current: tuple[str, float] | None = None
        """Label and start of the running call (``time.monotonic``); replaced by a single assignment, for any thread."""
        with _workers_lock:
            _workers.add(self)

    async def run(self, function: Callable[[], T], timeout: float | None = None, *, label: str = "call") -> T:
        """Run ``function`` in the thread, and return its result or raise its error. To be used in the event loop.

        The function has the context variables of the caller. ``timeout`` is in seconds and includes the time in the
        queue. Raises WorkerTimeoutError after it. Then, or if the caller is cancelled, a call that has not started
        never runs; a call that has started keeps running, its result is dropped, and the next call waits for its end.
        ``label`` names the call in error messages and in ``hanging``.
        """
        future = self._enqueue(function, label)
        result = asyncio.wrap_future(future)
        try:
            await asyncio.wait({result}, timeout=timeout)
            if result.done():
                return result.result()
        finally:
            future.cancel()  # no effect on a call that runs
            # From Python 3.14 on, the first cancellation cancels the result at once.
            if not result.cancel() and not result.cancelled():
                result.exception()  # mark it as retrieved, or asyncio would log it
            del future, result  # the traceback of their error has this frame: the cycle would keep the caller's, too
        raise self._timeout(label, timeout)

    def hanging(self, limit: float) -> tuple[str, float] | None:
        """Return label and age, in seconds, of the call that has been running for more than ``limit`` seconds.

        Return None if there is no such call. May be called in any thread.
        """
        if (current := self.current) is None or (seconds := time.monotonic() - current[1]) <= limit:
            return None
        return current[0], seconds

    def close(self, last: Callable[[], None] | None = None) -> None:
        """End the thread after the waiting calls and then ``last``. No call may follow."""
        if last is not None:
            self._calls.put(last)
        self._calls.put(None)

    def _enqueue(self, function: Callable[[], T], label: str) -> Future[T]:
        """Append a call to the queue, and start the thread if this is the first call."""
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
        del future, report  # as in ``run``


class HostCall:
    """One kind of call in a worker thread, with its conditions. Belongs to one event loop."""

    def __init__(
        self,
        worker: Worker,
        label: str,
        conditions: Conditions,
        resource: str,
        *,
        hangs: Kind,
        fails: Kind | None = None,
        limit: float,
        on_hang: Callable[[], object] = lambda: None,
        clock: Clock = CLOCK,
        path: str = "",
    ) -> None:
        """``label`` names the call in messages. ``path`` is the path that it reads, if there is one.

        A failure is a condition of the kind ``fails``, if given, until the next call succeeds. After ``limit`` seconds,
        a call counts as hanging. ``on_hang`` is called once for each hang.
        """
        self._worker = worker
        self.label = label
        self._conditions = conditions
        self._resource = resource
        self._hangs = hangs
        self._fails = fails
        self._limit = limit
        self._on_hang = on_hang
        self._clock = clock
        self._path = path
        self._hang: Condition | None = None
        self._failure: Condition | None = None

    @property
    def failing(self) -> bool:
        """Whether the last call has failed or hangs."""
        return self._hang is not None or self._failure is not None

    @property
    def hanging(self) -> bool:
        """Whether a call hangs."""
        return self._hang is not None

    async def run(self, function: Callable[[], T], timeout: float | None = None) -> T:
        """Run a call in the worker thread, and return its result.

        Raises what the call raises; WorkerTimeoutError after ``timeout`` seconds.
        """
        started = self._clock()
        async with background_task(self._worker.run(function, timeout, label=self.label)) as call:
            done, _ = await asyncio.wait({call}, timeout=self._limit)
            if not done:
                self._noticed(started)
            try:
                result = await call
            except WorkerTimeoutError:
                self._noticed(started)
                raise
            except (OSError, PluginError) as error:
                self._returned(str(error))
                raise
        self._returned("")
        return result

    def _noticed(self, since: float) -> None:
        """Report that a call hangs, unless that is reported already."""
        if self._hang is None:
            seconds = self._clock() - since
            text = f"{self.label} has been hanging for more than {self._limit:g} s"
            fields = {"duration_ms": milliseconds(seconds)} | ({"path": self._path} if self._path else {})
            self._hang = Condition(self._hangs, text, self._path, fields, time.time() - seconds)
            self._report()
            self._on_hang()

    def _returned(self, error: str) -> None:
        self._hang = self._failure = None
        if error and self._fails is not None:
            self._failure = Condition(self._fails, f"{self.label} failed: {error}", self._path, {"error": error})
        self._report()

    def _report(self) -> None:
        self._conditions.replace(self.label, self._resource, filter(None, (self._hang, self._failure)))
