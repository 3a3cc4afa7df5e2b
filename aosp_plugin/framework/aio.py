"""Waiting in asyncio: for one of several events, for the end of a burst, and for work in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

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


async def complete_unless(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Run ``work`` to its end, or cancel it when ``stop`` is set. Return whether it has completed; raises its error."""
    async with background_task(work) as task, background_task(stop.wait()) as stopped:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done()


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


async def run_in_daemon_thread(function: Callable[[], T], name: str) -> T:
    """Run ``function`` in a new thread, and return its result or raise its error.

    The thread is a daemon thread, unlike those of ``asyncio.to_thread``: a call that hangs, for example on a dead file
    system, does not keep the process from ending. It has the context variables of the caller.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def finish(complete: Callable[[], None]) -> None:
        if not result.done():
            complete()

    def run() -> None:
        try:
            complete = partial(result.set_result, function())
        except StopIteration as error:  # a future rejects it
            complete = partial(result.set_exception, RuntimeError(f"{name}: {error!r}"))
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            complete = partial(result.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(finish, complete)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True).start()
    return await result
