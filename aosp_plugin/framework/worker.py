"""A thread that runs blocking calls for the event loop, one after another, and the limit on threads."""

from __future__ import annotations

import _thread
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

from aosp_plugin.framework.conditions import Condition, Conditions, Kind
from aosp_plugin.framework.errors import PluginError, WorkerTimeoutError
from aosp_plugin.framework.service.logs import milliseconds

T = TypeVar("T")


_workers_lock = threading.Lock()  # guards _workers
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def running_calls(longer_than: float = 0.0) -> list[str]:
    """Return the calls that run in the worker threads of the process, for ``longer_than`` seconds.

    May be called in any thread.
    """
    with _workers_lock:
        calls = [(each.name, *running) for each in _workers if (running := each.running()) is not None]
    return [f"{label} of {name} for {seconds:.1f} s" for name, label, seconds in calls if seconds >= longer_than]


class Worker:
    """One daemon thread, started by the first call.

    A call that hangs, for example on a file system that does not answer, delays the calls behind it, but neither the
    event loop nor the end of the process.
    """

    def __init__(self, name: str) -> None:
        """``name`` is the name of the thread."""
        self.name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
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
        ``label`` names the call in error messages and conditions.
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
        current = self.current
        waited = "" if current is None or current[0] == label else f" because of a {current[0]} that has not ended"
        raise WorkerTimeoutError(f"{label} timed out after {timeout:g} s{waited}")

    def running(self) -> tuple[str, float] | None:
        """Return label and age, in seconds, of the call that runs; None if there is none. For any thread."""
        current = self.current
        return None if current is None else (current[0], time.monotonic() - current[1])

    def close(self, last: Callable[[], None] | None = None) -> None:
        """End the thread after the waiting calls and then ``last``. No call may follow."""
        if last is not None:
            self._calls.put(last)
        self._calls.put(None)

    def _enqueue(self, function: Callable[[], T], label: str) -> Future[T]:
        """Append a call to the queue, and start the thread if this is the first call."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            thread.start()
            self._thread = thread
        future: Future[T] = Future()
        self._calls.put(partial(contextvars.copy_context().run, self._execute, function, label, future))
        return future

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


async def report_hangs(
    worker: Worker,
    conditions: Conditions,
    resource: str,
    limit: float,
    kind_of: Callable[[str], Kind],
    path: str = "",
) -> None:
    """Report, until cancelled, a call that runs for more than ``limit`` seconds as a condition of a resource.

    ``kind_of`` returns the kind by the label of the call, and is called once for each hang. ``path`` is the path that
    the calls read, if there is one.
    """
    interval = limit / 4
    reported = ""
    while True:
        label, seconds = worker.running() or ("", 0.0)
        hangs = label if seconds >= limit else ""
        if hangs != reported:
            reported, found = hangs, []
            if hangs:
                text = f"{hangs} has been hanging for more than {limit:g} s"
                fields = {"call": hangs, "duration_ms": milliseconds(seconds)} | ({"path": path} if path else {})
                found.append(Condition(kind_of(hangs), text, path, fields, time.time() - seconds))
            conditions.replace(worker.name, resource, found)
        await asyncio.sleep(interval if hangs or not label else min(interval, limit - seconds))


REQUIRED = 32
"""Threads of a process that serves a few resources. gRPC starts up to 16, one for each processor, and crashes if it
cannot."""


def require_threads(count: int = REQUIRED) -> None:
    """Check that this process may have ``count`` more threads now. Raises PluginError.

    ``Thread.start`` waits until the thread runs: on a busy host, 32 times that took half of the plugin's start.
    """
    checked, ended = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        checked.wait()
        ended.release()

    started = 0
    try:
        while started < count:
            _thread.start_new_thread(wait, ())
            started += 1
    except RuntimeError as error:
        raise PluginError(
            f"cannot start {count} threads: raise the limit that is reached: pids.max of the cgroup (podPidsLimit of "
            "the kubelet, TasksMax of the systemd unit), RLIMIT_NPROC of the user (ulimit -u), or kernel.threads-max"
        ) from error
    finally:
        checked.set()
        for _ in range(started):
            ended.acquire()
