"""An event loop whose time passes only when nothing is left to do. It is a small one, for speed."""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any


class DeadlockError(Exception):
    """No task can go on, and none waits for a time."""


class SimulatedTask(asyncio.Task[Any]):
    """A task whose place in a set depends on its number, not on its address."""

    def __init__(self, work: Any, *, loop: "SimulatedLoop", **options: Any) -> None:
        loop.tasks_created += 1
        self._number = loop.tasks_created
        super().__init__(work, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class _Call(list[Any]):
    """A call that waits for its turn or its time: its function, arguments and context. A list is the fastest."""

    def cancel(self) -> None:
        """Do not call."""
        self[0] = None


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of a simulation: one thread, no file, and virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._due: list[_Call] = []
        self._later: list[tuple[float, int, _Call]] = []
        self._timers = 0
        self.tasks_created = 0
        self.before_step: Callable[[Context], None] | None = None
        """Called before each step with its context, while something waits for one."""

    def time(self) -> float:
        """Return the seconds since the simulation began."""
        return self._now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """See asyncio."""
        call = _Call((callback, args, copy_context() if context is None else context))
        self._due.append(call)
        return call

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """Call soon: there are no other threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """See asyncio."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """See asyncio."""
        call = _Call((callback, args, copy_context() if context is None else context))
        self._timers += 1
        heapq.heappush(self._later, (when, self._timers, call))
        return call

    def _run_once(self) -> None:
        """Run until the loop is to stop, not once: this saves the way back to the base class."""
        while not self._stopping:  # type: ignore[attr-defined]
            later = self._later
            while later and (later[0][0] <= self._now or not self._due):
                when, _, call = heapq.heappop(later)
                if call[0] is not None:
                    self._now = max(self._now, when)
                    self._due.append(call)
            if not self._due:
                raise DeadlockError
            due, self._due = self._due, []
            for function, arguments, context in due:
                if function is not None:
                    if self.before_step is not None:
                        self.before_step(context)
                    context.run(function, *arguments)

    def _asyncgen_firstiter_hook(self, _generator: Any) -> None:
        """Remember no generator: the tasks that use them are all awaited."""


async def wait(
    fs: Iterable[asyncio.Future[Any]], *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED
) -> tuple[set[Any], set[Any]]:
    """See ``asyncio.wait``, which is slower."""
    loop, futures = asyncio.get_running_loop(), [*fs]
    assert futures, "nothing to wait for"
    waiter = loop.create_future()
    left = 1 if return_when == asyncio.FIRST_COMPLETED else len(futures)
    timer = None if timeout is None else loop.call_later(timeout, _end, waiter)

    def completed(_future: object) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            _end(waiter)

    for future in futures:
        future.add_done_callback(completed)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        for future in futures:
            future.remove_done_callback(completed)
    done: set[Any] = set()
    pending: set[Any] = set()
    for future in futures:
        (done if future.done() else pending).add(future)
    return done, pending


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
