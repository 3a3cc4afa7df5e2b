"""What the stand-ins have in common: they start and stop, report events, and tests wait for their changes."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from kubelet_standin.events import Event

Run = TypeVar("Run")


class Observable(abc.ABC, Generic[Run]):
    """A server: an async context manager that belongs to one event loop. A ``Run`` exists from a start to a stop."""

    def __init__(self, noun: str, on_event: Callable[[Event], None] | None = None, **identity: object) -> None:
        """``noun`` names it in events and errors; ``identity`` are the fields of the event of its start."""
        self._noun = noun
        self._identity = identity
        self._on_event = on_event
        self._changed = asyncio.Event()
        self._run: Run | None = None

    async def __aenter__(self) -> Self:
        """Start it."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        await self.stop()

    @abc.abstractmethod
    async def _start(self) -> Run:
        """Start it, and return what exists until the next stop."""

    @abc.abstractmethod
    async def _stop(self, run: Run) -> None:
        """Break all connections."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Return a description of the state in a few lines, for failed tests."""

    async def start(self) -> None:
        """Start it. Raises RuntimeError if it already runs, and OSError."""
        if self._run is not None:
            raise RuntimeError(f"the {self._noun} already runs")
        self._run = await self._start()
        self._emit(f"{self._noun}-started", **self._identity)

    async def stop(self) -> None:
        """Stop it as if it was killed: all connections break, and new ones are refused. Idempotent."""
        run, self._run = self._run, None
        if run is not None:
            try:
                await self._stop(run)
            finally:
                self._emit(f"{self._noun}-stopped")

    async def restart(self) -> None:
        """Stop and start again."""
        await self.stop()
        await self.start()

    @property
    def running(self) -> bool:
        """Whether it is started."""
        return self._run is not None

    async def wait_for(self, predicate: Callable[[Self], object], timeout: float = 30.0) -> None:
        """Wait until the predicate holds; it is evaluated now and after each change of state.

        A state that lasts for less than one iteration of the event loop may be missed; use counters that only grow
        if that matters. Raises TimeoutError after ``timeout`` seconds, with a description of the state.
        """
        try:
            async with asyncio.timeout(timeout):
                while not predicate(self):
                    await self.next_change().wait()
        except TimeoutError:
            raise TimeoutError(f"condition not met within {timeout:g} s; {self.describe()}") from None

    def next_change(self) -> asyncio.Event:
        """Return an event that the next change of state sets."""
        return self._changed

    def _running(self) -> Run:
        if self._run is None:
            raise RuntimeError(f"the {self._noun} is stopped")
        return self._run

    def _emit(self, name: str, /, **fields: object) -> None:
        """Report an event, which is a change."""
        if self._on_event is not None:
            self._on_event(Event(name, fields))
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
