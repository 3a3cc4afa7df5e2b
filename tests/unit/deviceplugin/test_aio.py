"""Waiting for events and for the end of a burst, and background tasks."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from aosp_plugin.framework.aio import background_task, complete_unless, debounce, leaves, wait_any


async def spin(turns: int = 20) -> None:
    """Let other tasks run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def other_tasks() -> set[asyncio.Task[Any]]:
    """Return the tasks beside the running one, after cancelled ones have ended."""
    await spin()
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_wait_any_returns_when_any_event_is_set(which: int) -> None:
    """If one is set already, it returns at once."""
    events = [asyncio.Event() for _ in range(3)]
    waiting = asyncio.create_task(wait_any(*events))
    await spin()
    assert not waiting.done()
    events[which].set()
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


@pytest.mark.parametrize(
    ("events_after", "quiet", "cap", "waits", "duration"),
    [
        pytest.param([], 0.01, 0.25, [0.01], 0.01, id="single event"),
        pytest.param([0.005] * 3, 0.01, 0.25, [0.01] * 4, 0.025, id="burst"),
        pytest.param([0.75] * 99, 1.0, 2.0, [1.0, 1.0, 0.5], 2.0, id="burst longer than the cap"),
        pytest.param([1.0] * 3, 1.0, 2.0, [1.0, 1.0], 2.0, id="event exactly at the cap"),
    ],
)
async def test_debounce_waits_for_the_end_of_a_burst(
    monkeypatch: pytest.MonkeyPatch,
    events_after: list[float],
    quiet: float,
    cap: float,
    waits: list[float],
    duration: float,
) -> None:
    changed = asyncio.Event()
    changed.set()
    with monkeypatch.context() as patch:
        clock = WaitClock(patch, *events_after)
        await debounce(changed, quiet, cap)
    assert clock.waits == waits
    assert clock.now == pytest.approx(100.0 + duration)
    assert not changed.is_set()


def collect_loop_errors() -> list[object]:
    """Return a list to which the event loop adds errors that are not retrieved."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    return errors


async def test_background_task_runs_inside_the_context_and_is_awaited_at_the_end() -> None:
    """An error in the context ends it as well."""
    steps: list[str] = []

    async def work() -> None:
        steps.append("started")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    async def run() -> None:
        async with background_task(work()):
            await spin()
            raise ValueError(*steps)

    with pytest.raises(ValueError, match=r"^started$"):
        await run()
    assert steps == ["started", "ended"]


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


def test_leaves_are_all_errors_of_nested_groups() -> None:
    first, second, third = ValueError("1"), OSError("2"), KeyError("3")
    assert leaves(first) == [first]
    assert leaves(ExceptionGroup("", [first, ExceptionGroup("", [second, third])])) == [first, second, third]


@pytest.mark.parametrize("turns", range(8))
async def test_work_is_reported_as_completed_exactly_if_it_has(turns: int) -> None:
    """The work ends some turns of the event loop after the stop. What it started would otherwise never be stopped."""
    stop, completed = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        stop.set()
        await spin(turns)
        completed.set()

    assert await complete_unless(stop, work()) is completed.is_set()
    assert await other_tasks() == set()
