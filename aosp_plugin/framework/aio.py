"""Waiting in asyncio: for one of several events, and for the end of a burst; calls from other threads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


@contextlib.asynccontextmanager
async def background_task(work: Coroutine[None, None, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run ``work`` as a task inside the context, and cancel it at the end.

    An error of the task is only raised if the caller awaits the task.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # mark it as retrieved, or asyncio would log it


async def wait_any(*events: asyncio.Event, timeout: float | None = None) -> bool:
    """Wait until one of ``events`` is set; return False if none is after ``timeout`` seconds."""
    if any(event.is_set() for event in events):
        return True
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)  # leave no task behind
    return bool(done)


async def complete_unless(stop: asyncio.Event, work: Coroutine[None, None, object]) -> bool:
    """Run ``work`` to its end, or cancel it when ``stop`` is set. Return whether it has completed; raises its error.

    Work that completes although ``stop`` is set has completed: it may have started what the caller has to stop.
    """
    async with background_task(stop.wait()) as stopped, background_task(work) as task:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if task.cancelled():
        return False
    task.result()
    return True


def call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Call a function in the event loop soon, in any thread; not at all if the event loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in an exception group, however nested, or the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for member in error.exceptions for leaf in leaves(member)]


async def debounce(changed: asyncio.Event, quiet: float, cap: float) -> None:
    """Wait until ``changed`` has not been set for ``quiet`` seconds, but no longer than ``cap`` seconds.

    Clears the event: a change after the return sets it again.
    """
    end = asyncio.get_running_loop().time() + cap
    while True:
        changed.clear()
        remaining = end - asyncio.get_running_loop().time()
        if remaining <= 0 or not await wait_any(changed, timeout=min(quiet, remaining)):
            return
