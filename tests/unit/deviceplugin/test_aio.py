"""Waiting for events and for the end of a burst, and background tasks."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from aosp_plugin.framework.aio import background_task, complete_unless, debounce, wait_any


async def spin(turns: int = 20) -> None:
    """Let other tasks run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def other_tasks() -> set[asyncio.Task[Any]]:
    """Return the tasks beside the running one, after cancelled ones have ended."""
    await spin()
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_wait_any_returns_when_any_event_is_set() -> None:
    """If one is set already, it returns at once."""
    events = [asyncio.Event() for _ in range(3)]
    waiting = asyncio.create_task(wait_any(*events))
    await spin()
    assert not waiting.done()
    events[2].set()
    assert await waiting is True
    assert await other_tasks() == set()
    with pytest.raises(StopIteration) as done:
        wait_any(*events).send(None)
    assert done.value.value is True


async def test_wait_any_leaves_no_tasks_after_a_timeout_or_a_cancellation() -> None:
    assert await wait_any(asyncio.Event(), asyncio.Event(), timeout=0.001) is False
    assert await other_tasks() == set()
    waiting = asyncio.create_task(wait_any(asyncio.Event(), asyncio.Event()))
    await spin()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await other_tasks() == set()


class WaitClock:
    """Replaces ``wait_any`` and the loop's clock: time passes only during a wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *events_after: float) -> None:
        self.now = 100.0
        self.waits: list[float] = []
        self._events_after = list(events_after)
        """Seconds after which the event is set, one entry per wait; without an entry it is not set."""
        monkeypatch.setattr("aosp_plugin.framework.aio.wait_any", self.wait_any)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    async def wait_any(self, event: asyncio.Event, *, timeout: float) -> bool:
        """Wait as ``wait_any`` does."""
        assert not event.is_set()
        self.waits.append(timeout)
        after = self._events_after.pop(0) if self._events_after else timeout + 1
        self.now += min(after, timeout)
        if after <= timeout:
            event.set()
        return event.is_set()


async def test_debounce_waits_for_the_end_of_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most for the cap: here, the fourth event would come after it."""
    changed = asyncio.Event()
    changed.set()
    with monkeypatch.context() as patch:
        clock = WaitClock(patch, 0.75, 0.75, 0.75, 1.0)
        await debounce(changed, 1.0, 2.0)
        assert (clock.waits, clock.now) == ([1.0, 1.0, 0.5], 102.0)
        changed.set()
        clock = WaitClock(patch, 0.5, 0.5)
        await debounce(changed, 1.0, 5.0)
        assert (clock.waits, clock.now) == ([1.0] * 3, 102.0)
    assert not changed.is_set()


def collect_loop_errors() -> list[object]:
    """Return a list to which the event loop adds errors that are not retrieved."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    return errors


async def test_error_of_a_background_task_is_raised_only_on_request() -> None:
    errors = collect_loop_errors()

    async def fail(*, at_the_end: bool) -> None:
        try:
            await (asyncio.Event().wait() if at_the_end else asyncio.sleep(0))
        finally:
            raise OSError("away")

    for at_the_end in (False, True):
        async with background_task(fail(at_the_end=at_the_end)) as task:
            await spin()
        with pytest.raises(OSError, match="away"):
            task.result()
        del task
        async with background_task(fail(at_the_end=at_the_end)):
            await spin()
    gc.collect()
    assert errors == []


async def test_work_is_reported_as_completed_exactly_if_it_has() -> None:
    """The work ends some turns of the event loop after the stop. What it started would otherwise never be stopped."""

    async def work(turns: int, stop: asyncio.Event, completed: asyncio.Event) -> None:
        stop.set()
        await spin(turns)
        completed.set()

    for turns in range(8):
        stop, completed = asyncio.Event(), asyncio.Event()
        assert await complete_unless(stop, work(turns, stop, completed)) is completed.is_set()
        assert await other_tasks() == set()
