"""Calls on the host in a worker thread: a failure, a hang and their end are logged once each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.clock import CLOCK, Clock
from aosp_plugin.framework.errors import PluginError, WorkerTimeoutError
from aosp_plugin.framework.observer import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.framework.problem import Problem
    from aosp_plugin.framework.worker import Worker

T = TypeVar("T")


class HostCall:
    """One kind of call. Belongs to one event loop."""

    def __init__(
        self,
        worker: Worker,
        label: str,
        *,
        hang: Problem,
        limit: float,
        failure: Problem | None = None,
        on_hang: Callable[[float], object] = lambda _seconds: None,
        clock: Clock = CLOCK,
        **fields: object,
    ) -> None:
        """``label`` names the call in messages. After ``limit`` seconds, it counts as hanging.

        ``on_hang`` is then called with the seconds, once for each hang; ``fields`` are those of its log record.
        """
        self._worker = worker
        self._label = label
        self._hang = hang
        self._limit = limit
        self._failure = failure
        self._on_hang = on_hang
        self._clock = clock
        self._fields = fields
        self._hanging_since = 0.0

    @property
    def problem(self) -> str:
        """What hangs or has failed; empty if nothing. May be read in any thread."""
        if self._hang.text:
            return f"{self._hang.text} for {self._clock() - self._hanging_since:.0f} s"
        return self._failure.text if self._failure else ""

    async def run(self, function: Callable[[], T], timeout: float | None = None) -> T:
        """Run a call in the worker thread, and return its result.

        Raises what the call raises; WorkerTimeoutError after ``timeout`` seconds.
        """
        started = self._clock()
        async with background_task(self._worker.run(function, timeout, label=self._label)) as call:
            done, _ = await asyncio.wait({call}, timeout=self._limit)
            if not done:
                self._hangs(started)
            try:
                result = await call
            except WorkerTimeoutError:
                self._hangs(started)
                raise
            except (OSError, PluginError) as error:
                self._returned(str(error))
                raise
        self._returned("")
        return result

    def _hangs(self, since: float) -> None:
        if self._hang.text:  # another call has reported it
            return
        self._hanging_since = since
        seconds = self._clock() - since
        self._hang.set(f"{self._label} has been hanging", duration_ms=milliseconds(seconds), **self._fields)
        self._on_hang(seconds)

    def _returned(self, error: str) -> None:
        if self._hang.text:
            self._hang.set("", duration_ms=milliseconds(self._clock() - self._hanging_since))
        if self._failure is None:
            return
        if error:
            self._failure.set(f"{self._label} failed: {error}", error=error)
        else:
            self._failure.set("")
