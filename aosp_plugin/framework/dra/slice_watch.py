"""Notices early that the ResourceSlices of a driver have changed: a watch, which only wakes the publisher."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.apiserver.protocol import RESOURCE_SLICES, ApiError
from aosp_plugin.framework.observer import Problem
from aosp_plugin.framework.timings import Backoff

if TYPE_CHECKING:
    import random

    from aosp_plugin.framework.apiserver.client import ApiClient
    from aosp_plugin.framework.apiserver.protocol import WatchEvent

LOG = logging.getLogger(__name__)

ANY_VERSION = "0"
"""The resourceVersion of a watch that begins with what the server's cache has. No version is remembered, so none can be
too old, or later than those of a server whose data was restored from a backup."""


class SliceTimings(NamedTuple):
    """Times in seconds."""

    relist: float = 300.0
    """Between two comparisons without a reason: a lost event costs the devices of a node for as long, and attributes
    change without an event."""
    after_end: tuple[float, float] = (0.0, 2.0)
    """From the end of a watch to the next one; random, because all nodes lose their watches when an API server ends."""
    stable: float = 1.0
    """A watch that lasts for as long ends the problem of earlier ones."""


IN_LIFE = SliceTimings()


def slice_problem() -> Problem:
    """Return a reason why the ResourceSlices may not be as they should be; see ``report``."""
    return Problem(LOG, "DRA driver has a problem", "DRA driver no longer has the problem")


def report(problem: Problem, text: str) -> None:
    """Set a problem; empty for its end."""
    problem.set(text, problem=text or problem.text)


class SliceWatch:
    """The watch of a driver's slices on one node. For one event loop."""

    def __init__(self, api: ApiClient, selector: str, timings: SliceTimings, rng: random.Random) -> None:
        """``selector`` is a field selector for the driver's slices."""
        self._api = api
        self._selector = selector
        self._timings = timings
        self._rng = rng
        self._backoff = Backoff(rng)
        self._failed = False
        self.problem = slice_problem()
        """That the watch fails again and again."""
        self.known: dict[str, str] = {}
        """The resourceVersion of each slice as the publisher has listed or written it: nothing new for it."""
        self.changed = asyncio.Event()
        """Set when the slices are to be listed, until ``take``."""
        self._reconnected = self._deleted = False

    def take(self) -> tuple[bool, bool]:
        """Return what has happened since the last call: a watch replaced a broken one; a slice was deleted."""
        taken = self._reconnected, self._deleted
        self._reconnected = self._deleted = False
        self.changed.clear()
        return taken

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self._watch()
            except ApiError as error:
                if self._failed:  # one failure alone is an API server that ended
                    report(self.problem, f"watch of ResourceSlices failed: {error}")
                self._failed = True
                await asyncio.sleep(self._backoff.pause(error.retry_after))
            await asyncio.sleep(self._rng.uniform(*self._timings.after_end))

    async def _watch(self) -> None:
        """Note events until the server ends the watch. Raises ApiError."""
        timers: list[asyncio.TimerHandle] = []

        def opened() -> None:
            timers.append(asyncio.get_running_loop().call_later(self._timings.stable, self._is_stable))
            self._reconnected = self._reconnected or self._failed
            self.changed.set()

        watch = self._api.watch(
            RESOURCE_SLICES, field_selector=self._selector, resource_version=ANY_VERSION, opened=opened
        )
        try:
            async with contextlib.aclosing(watch) as events:
                async for event in events:
                    self._note(event)
        finally:
            for timer in timers:
                timer.cancel()

    def _is_stable(self) -> None:
        self._failed = False
        self._backoff.succeeded()
        report(self.problem, "")

    def _note(self, event: WatchEvent) -> None:
        known = self.known.get(event.object["metadata"].get("name", ""))
        if event.type == "DELETED":
            if known is None:  # obsolete, and deleted by the publisher
                return
            self._deleted = True
        elif event.type == "BOOKMARK" or known == event.resource_version:
            return
        self.changed.set()
