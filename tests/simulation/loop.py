"""An event loop whose time passes only when nothing is left to do."""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class DeadlockError(Exception):
    """No task can go on, and none waits for a time."""


class _Selector(selectors.BaseSelector):
    """Waits for no file: it lets the time pass instead."""

    def __init__(self) -> None:
        self.now = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError
        self.now += max(0.0, timeout)
        return []

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._keys


class SimulatedTask(asyncio.Task[Any]):
    """A task whose place in a set depends on its number, not on its address."""

    def __init__(self, work: Any, *, loop: Any, **options: Any) -> None:
        self._number: int = loop.next_number()
        super().__init__(work, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """A future of the same kind."""

    def __init__(self, *, loop: Any) -> None:
        self._number: int = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The event loop of a simulation: one thread, and no file."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9
        self._numbers = 0

    def next_number(self) -> int:
        """Return the number of a new task or future."""
        self._numbers += 1
        return self._numbers

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future."""
        return _Future(loop=self)

    def time(self) -> float:
        """Return the seconds since the simulation began."""
        return self._virtual.now

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Any:
        """Call soon: there are no other threads."""
        return self.call_soon(callback, *args, context=context)
