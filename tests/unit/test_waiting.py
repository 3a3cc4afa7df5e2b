"""Waiting for events, for a burst to debounce, and for work in a thread."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.framework.aio import background_task, debounce, run_in_daemon_thread, wait_any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


async def spin(turns: int = 20) -> None:
    """Let other tasks go on."""
    for _ in range(turns):
        await asyncio.sleep(0)


def others() -> set[asyncio.Task[Any]]:
    """Return the tasks beside the running one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_an_event_that_is_set_already_is_not_waited_for() -> None:
    """The answer comes without a turn of the loop."""
    one, two = asyncio.Event(), asyncio.Event()
    two.set()
    waiting = wait_any(one, two)
    with pytest.raises(StopIteration) as done:
        waiting.send(None)
    assert done.value.value is True


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_any_of_several_events_ends_the_wait(which: int) -> None:
    """Whichever comes first, and nothing is left running."""
    events = [asyncio.Event() for _ in range(3)]
    waiting = asyncio.create_task(wait_any(*events))
    await spin()
    assert not waiting.done()
    events[which].set()
    assert await waiting is True
    assert others() == set()


async def test_no_event_within_the_time_is_false() -> None:
    """And nothing is left running."""
    assert await wait_any(asyncio.Event(), asyncio.Event(), timeout=0.001) is False
    assert others() == set()


async def test_a_cancelled_wait_leaves_nothing_running() -> None:
    """A plugin that stops cancels what waits."""
    waiting = asyncio.create_task(wait_any(asyncio.Event(), asyncio.Event()))
    await spin()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert others() == set()


class Clock:
    """Time that passes only where somebody waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.waits: list[float] = []
        self.then: list[float] = []
        """Seconds after which the event is set again, one entry a wait; none: it is not."""
        monkeypatch.setattr("aosp_plugin.framework.aio.wait_any", self.wait_any)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    async def wait_any(self, event: asyncio.Event, *, timeout: float) -> bool:
        """Wait, as wait_any does."""
        assert not event.is_set()
        self.waits.append(timeout)
        after = self.then.pop(0) if self.then else timeout + 1
        self.now += min(after, timeout)
        if after <= timeout:
            event.set()
        return event.is_set()


async def settled(clock: Clock, quiet: float, cap: float) -> asyncio.Event:
    """Let a burst debounce."""
    changed = asyncio.Event()
    changed.set()
    await debounce(changed, quiet, cap)
    return changed


async def test_a_single_event_settles_after_the_quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event is cleared, so that the next one counts as new."""
    clock = Clock(monkeypatch)
    changed = await settled(clock, 0.01, 0.25)
    assert clock.waits == [0.01]
    assert not changed.is_set()
    monkeypatch.undo()


async def test_a_burst_settles_after_its_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event begins the quiet time anew."""
    clock = Clock(monkeypatch)
    clock.then = [0.005, 0.005, 0.005]
    changed = await settled(clock, 0.01, 0.25)
    assert clock.now == pytest.approx(100.025)
    assert len(clock.waits) == 4
    assert not changed.is_set()
    monkeypatch.undo()


async def test_a_burst_without_an_end_is_cut_at_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last wait is no longer than what is left, and the event is cleared all the same."""
    clock = Clock(monkeypatch)
    clock.then = [0.75] * 99
    changed = await settled(clock, 1.0, 2.0)
    assert clock.waits == [1.0, 1.0, 0.5]
    assert clock.now == 102.0
    assert not changed.is_set()
    monkeypatch.undo()


async def test_an_event_at_the_very_end_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cap is reached exactly, no further wait of no time follows."""
    clock = Clock(monkeypatch)
    clock.then = [1.0, 1.0, 1.0]
    await settled(clock, 1.0, 2.0)
    assert clock.waits == [1.0, 1.0]
    monkeypatch.undo()


async def test_settling_with_real_events_returns() -> None:
    """Over the real loop, too."""
    changed = asyncio.Event()
    changed.set()
    await debounce(changed, 0.001, 0.002)
    assert not changed.is_set()


async def test_work_in_a_thread_returns_its_result() -> None:
    """The thread is a daemon with the given name, and the loop goes on in the meantime."""
    seen: list[threading.Thread] = []
    go = threading.Event()

    def work() -> int:
        seen.append(threading.current_thread())
        assert go.wait(30)
        return 42

    waiting = asyncio.create_task(run_in_daemon_thread(work, "look"))
    await spin()
    go.set()
    assert await waiting == 42
    assert (seen[0].name, seen[0].daemon) == ("look", True)
    assert seen[0] is not threading.current_thread()


async def test_none_is_a_result() -> None:
    """Work that returns nothing is done as well."""
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    assert await run_in_daemon_thread(nothing, "x") is None  # type: ignore[func-returns-value]


class OddError(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [OSError("away"), OddError("odd")])
async def test_what_the_work_raises_is_raised(error: BaseException) -> None:
    """The very same object, whatever its class."""

    def work() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        await run_in_daemon_thread(work, "x")
    assert raised.value is error


class Held:
    """Work that goes on until a test lets it end, be it with an error."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails
        self._begun, self._go = threading.Event(), threading.Event()
        self._thread = threading.current_thread()

    def work(self) -> None:
        """Go on."""
        self._thread = threading.current_thread()
        self._begun.set()
        assert self._go.wait(30)
        if self._fails:
            raise OSError

    def finish(self) -> None:
        """Let it end, once it has begun: a thread that was started may not have got so far."""
        assert self._begun.wait(30)
        self._go.set()
        self._thread.join()


async def test_work_whose_waiter_was_cancelled_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result, or error, goes nowhere, and nothing is logged of it."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    for fails in (False, True):
        held = Held(fails=fails)
        waiting = asyncio.create_task(run_in_daemon_thread(held.work, "x"))
        await spin()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        held.finish()
        await spin()
    gc.collect()
    assert told == []


def test_work_that_outlives_the_loop_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call into a closed loop is nobody's error: no thread dies with a traceback."""
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    held = Held()

    async def give_up() -> None:
        waiting = asyncio.create_task(run_in_daemon_thread(held.work, "x"))
        await spin()
        waiting.cancel()

    asyncio.run(give_up())
    held.finish()
    assert died == []


async def test_a_task_goes_on_while_its_context_lasts() -> None:
    """And is cancelled, and over, at the end."""
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("ended")

    async with background_task(work()) as task:
        await spin()
        assert seen == ["begun"]
    assert seen == ["begun", "ended"]
    assert task.cancelled()


async def test_a_task_that_is_done_gives_its_result() -> None:
    """The end of the context takes nothing away."""

    async def work() -> int:
        return 3

    async with background_task(work()) as task:
        assert await task == 3
    assert task.result() == 3


async def test_what_the_task_raises_is_for_whoever_asks() -> None:
    """The context ends quietly, and asyncio has nothing to complain of when the task is thrown away."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))

    async def work() -> None:
        raise OSError("away")

    async with background_task(work()) as task:
        await spin()
    with pytest.raises(OSError, match="away"):
        task.result()

    async def fail_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("away")

    async def unasked(work: Callable[[], Coroutine[None, None, None]]) -> None:
        async with background_task(work()):
            await spin()

    await unasked(work)
    await unasked(fail_at_the_end)
    gc.collect()
    assert told == []


async def test_what_the_context_raises_comes_out_and_the_task_is_over() -> None:
    """Whatever ends the context ends the task."""
    with pytest.raises(ValueError, match="here"):
        async with background_task(asyncio.Event().wait()) as task:
            raise ValueError("here")
    assert task.cancelled()


async def test_a_function_that_stops_an_iteration_is_an_error() -> None:
    """StopIteration, which no future takes, comes out as an error that names the work, and not as a wait for ever."""
    with pytest.raises(RuntimeError, match=r"look: StopIteration"):
        await asyncio.wait_for(run_in_daemon_thread(lambda: next(iter([])), "look"), 10)
