"""Pauses between attempts, and requests that are repeated."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, TypeVar

from aosp_plugin.framework.apiserver.errors import ApiError, ApiUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

FIRST, FACTOR, CAP = 0.1, 2.0, 30.0
"""Seconds, factor, seconds."""


class Backoff:
    """The pauses after requests that failed, one after another: exponentially longer, and random.

    Each is random in the upper half of its range, because all nodes lose their connections at the same time when an
    API server ends.
    """

    def __init__(self, rng: random.Random | None = None, *, first: float = FIRST, cap: float = CAP) -> None:
        """``first`` and ``cap`` are the shortest and the longest pause, in seconds."""
        self._rng = rng or random.Random()  # noqa: S311 - spreads the load
        self._first = first
        self._cap = cap
        self._next = first

    def succeeded(self) -> None:
        """Begin with the shortest pause again."""
        self._next = self._first

    def pause(self, error: ApiError | None = None) -> float:
        """Return the seconds before the next attempt, which are at least what the server asks for (Retry-After)."""
        pause = self._next * self._rng.uniform(0.5, 1.0)
        self._next = min(self._next * FACTOR, self._cap)
        if error is not None and error.retry_after is not None:
            pause = max(pause, error.retry_after * self._rng.uniform(1.0, 1.2))
        return pause


async def retry(
    attempt: Callable[[], Awaitable[T]],
    seconds: float,
    *,
    again: Callable[[ApiError], bool] = lambda error: error.transient,
    rng: random.Random | None = None,
) -> T:
    """Return the result of ``attempt``, which is repeated for ``seconds`` while its error is one to try ``again``.

    Raises the last error when another attempt would begin too late, or when the time is over within an attempt.
    """
    backoff = Backoff(rng)
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    last: ApiError | None = None
    while True:
        try:
            async with asyncio.timeout_at(end):
                return await attempt()
        except TimeoutError:
            raise last or ApiUnavailableError(None, f"no answer within {seconds:g} s") from None
        except ApiError as error:
            pause = backoff.pause(error)
            if not again(error) or loop.time() + pause >= end:
                raise
            last = error
        await asyncio.sleep(pause)
