"""Waiting: for one of several asyncio events, for a burst of them to debounce, for work in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

T = TypeVar("T")


@contextlib.asynccontextmanager
async def background_task(work: Coroutine[None, None, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Have ``work`` go on as a task while the context lasts. What it raises is for whoever asks the task."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen, or asyncio would log it as never retrieved


async def wait_any(*events: asyncio.Event, timeout: float | None = None) -> bool:
    """Wait until one of ``events`` is set; return False where ``timeout`` seconds went by before."""
    if any(event.is_set() for event in events):
        return True
    async with contextlib.AsyncExitStack() as stack:
        tasks = [await stack.enter_async_context(background_task(event.wait())) for event in events]
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def debounce(changed: asyncio.Event, quiet: float, cap: float) -> None:
    """Wait until ``changed`` was not set again for ``quiet`` seconds, but for ``cap`` seconds at the most.

    Clears the event, so that what comes after the return counts as new.
    """
    end = asyncio.get_running_loop().time() + cap
    while True:
        changed.clear()
        left = end - asyncio.get_running_loop().time()
        if left <= 0 or not await wait_any(changed, timeout=min(quiet, left)):
            return


async def run_in_daemon_thread(function: Callable[[], T], name: str) -> T:
    """Run ``function`` in a thread of its own, and return or raise what it does.

    A daemon, unlike those of ``asyncio.to_thread``: a call that hangs, as on a dead file system, must not keep
    the process from ending. It has the context variables of the caller, as those have.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle_result(outcome: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(outcome)  # type: ignore[arg-type] # None only with an error

    def run() -> None:
        outcome: T | None = None
        failure: BaseException | None = None
        try:
            outcome = function()
        except StopIteration as error:  # which no future takes
            failure = RuntimeError(f"{name}: {error!r}")
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any longer
            loop.call_soon_threadsafe(settle_result, outcome, failure)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True).start()
    return await result
