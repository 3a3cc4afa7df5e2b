"""Tasks that run inside a context."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
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
