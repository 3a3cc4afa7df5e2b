"""The watchdog of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from aosp_plugin.framework.service import liveness
from aosp_plugin.framework.service.liveness import LIMIT, Heartbeat
from tests.support import Clock

if TYPE_CHECKING:
    import pytest


def test_beat_is_valid_for_ten_seconds() -> None:
    """The creation counts as the first beat. A check does not wait in that time."""
    clock = Clock()
    beating = Heartbeat(clock, grace=3600.0)
    clock.now += LIMIT
    assert beating.problem() == ""
    beating.beat()
    clock.now += LIMIT
    assert beating.problem() == ""


def test_loop_without_a_beat_is_stuck() -> None:
    clock = Clock()
    beating = Heartbeat(clock, grace=0.0)
    clock.now += LIMIT + 1
    assert beating.problem() == "the event loop has been stuck for 11 s"
    clock.now += 60
    assert beating.problem() == "the event loop has been stuck for 71 s"
    beating.beat()
    assert beating.problem() == ""


def test_process_that_was_stopped_is_not_stuck() -> None:
    """The check finds an old beat, and waits for the next one."""
    checking = threading.Event()

    class SignallingClock(Clock):
        def __call__(self) -> float:
            checking.set()
            return self.now

    clock = SignallingClock()
    beating = Heartbeat(clock, grace=3600.0)
    clock.now += 300
    checking.clear()
    problems: list[str] = []
    check = threading.Thread(target=lambda: problems.append(beating.problem()), daemon=True)
    check.start()
    assert checking.wait(10)
    beating.beat()  # blocks until the check waits, because both take the same lock
    check.join(10)
    assert problems == [""]


async def test_running_loop_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is blocked by a call is stuck until the call returns."""
    monkeypatch.setattr(liveness, "INTERVAL", 0.0)
    monkeypatch.setattr(liveness, "LIMIT", 0.0)
    beating = Heartbeat(grace=10.0)
    task = asyncio.create_task(beating.run())
    assert await asyncio.to_thread(beating.problem) == ""
    beating._grace = 0.01
    assert beating.problem().startswith("the event loop has been stuck for ")  # the check itself blocks the loop
    beating._grace = 10.0
    assert await asyncio.to_thread(beating.problem) == ""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
