"""Tasks that run inside a context."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine


@contextlib.asynccontextmanager
async def background_task(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run ``work`` as a task inside the context, and cancel it at the end.

    An error of the task is not raised.
    """
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # asyncio would log an error that nobody retrieves
