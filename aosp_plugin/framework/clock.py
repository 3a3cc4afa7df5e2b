"""The time in the framework: the clock, the request to stop with its deadline, and pauses between attempts."""

import asyncio
import random
import time

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.timings import DEFAULT, Timings


class Clock:
    """The time of the system."""

    def __call__(self) -> float:
        """Return the time in seconds, which is never set back. May be called in any thread."""
        return time.monotonic()

    async def wait(self, *events: asyncio.Event, timeout: float | None = None) -> bool:
        """Wait until one of ``events`` is set; return False if none is after ``timeout`` seconds."""
        return await wait_any(*events, timeout=timeout)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


CLOCK = Clock()


class Stop(asyncio.Event):
    """Set by a request to stop, which has one deadline for all that ends then."""

    def __init__(self, timings: Timings = DEFAULT, clock: Clock = CLOCK) -> None:
        super().__init__()
        self._within = timings.stop
        self._clock = clock
        self._end: float | None = None

    def request(self, within: float | None = None) -> None:
        """Request a stop ``within`` seconds, by default ``Timings.stop``."""
        self._end = self._clock() + (self._within if within is None else within)
        self.set()

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; all of them if no stop is requested."""
        return self._within if self._end is None else max(0.0, self._end - self._clock())


class Backoff:
    """The pauses after failures, one after another: exponentially longer ones up to a cap."""

    def __init__(self, rng: random.Random | None = None, *, first: float = 0.1, cap: float = 3.0) -> None:
        """``first`` and ``cap`` are the shortest and the longest pause, in seconds.

        The default suits requests to the API server: a problem is gone, and a claim is prepared, soon after it is back.
        """
        self._rng = rng or random.Random()  # noqa: S311 - spreads the load
        self._first = self._next = first
        self._cap = cap

    def succeeded(self) -> None:
        """Begin with the shortest pause again."""
        self._next = self._first

    def pause(self, asked: float | None = None) -> float:
        """Return the seconds before the next attempt: at least what a server has ``asked`` for (Retry-After)."""
        pause = self._next * self._rng.uniform(0.5, 1.0)
        self._next = min(2 * self._next, self._cap)
        return pause if asked is None else max(pause, asked * self._rng.uniform(1.0, 1.2))
