"""Waiting for events and for the end of a burst, background tasks, and pauses between attempts."""

import asyncio
import gc
import random
from typing import Any

import pytest

from aosp_plugin.framework.timing import Backoff, background_task, complete_unless, debounce, wait_any


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


@pytest.mark.parametrize(
    ("events_after", "cap", "waits"),
    [((0.75, 0.75, 0.75, 1.0), 2.0, [1.0, 1.0, 0.5]), ((0.5, 0.5), 5.0, [1.0] * 3)],
    ids=["until the cap", "until the end of the burst"],
)
async def test_debounce_waits_for_the_end_of_a_burst(
    monkeypatch: pytest.MonkeyPatch, events_after: tuple[float, ...], cap: float, waits: list[float]
) -> None:
    """Time passes only during a wait, in which the event is set after some seconds, or not at all."""
    changed, now, waited, after = asyncio.Event(), [100.0], list[float](), [*events_after]

    async def wait_any(event: asyncio.Event, *, timeout: float) -> bool:
        assert not event.is_set()
        waited.append(timeout)
        seconds = after.pop(0) if after else timeout + 1
        now[0] += min(seconds, timeout)
        if seconds <= timeout:
            event.set()
        return event.is_set()

    changed.set()
    with monkeypatch.context() as patch:
        patch.setattr("aosp_plugin.framework.timing.wait_any", wait_any)
        patch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
        await debounce(changed, 1.0, cap)
    assert (waited, now) == (waits, [102.0])
    assert not changed.is_set()


async def test_error_of_a_background_task_is_raised_only_on_request(loop_errors: list[object]) -> None:

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
    assert loop_errors == []


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


def test_pauses_double_up_to_the_cap_and_are_random_in_the_upper_half() -> None:
    """A short pause does not change the next range."""
    backoff = Backoff(random.Random(1), first=0.1, cap=15.0)  # noqa: S311 - no secrets
    other = Backoff(random.Random(2), first=0.1, cap=15.0)  # noqa: S311
    ranges = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15, 15]
    pauses = [backoff.pause() for _ in ranges]
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(pauses, ranges, strict=True))
    assert len(set(pauses)) == len(pauses)
    assert pauses != [other.pause() for _ in ranges]
