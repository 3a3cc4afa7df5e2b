"""Whether the event loop still turns, as another thread is told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from aosp_plugin.framework.service import heartbeat, http
from aosp_plugin.framework.service.heartbeat import DOUBT, INTERVAL, LIMIT, Heartbeat

if TYPE_CHECKING:
    import pytest


class Clock:
    """Seconds that go by when the test says so; tells who asked."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = threading.Event()

    def __call__(self) -> float:
        """Return the time."""
        self.asked.set()
        return self.now


def test_a_beat_is_good_for_ten_seconds() -> None:
    """And from the start on, before the first one; nobody is kept waiting for it."""
    clock = Clock()
    beating = Heartbeat(clock, doubt=3600.0)
    clock.now += LIMIT
    assert beating.problem() == ""
    beating.beat()
    clock.now += LIMIT
    assert beating.problem() == ""


def test_a_loop_that_does_not_beat_is_stuck() -> None:
    """It is said for how long."""
    clock = Clock()
    beating = Heartbeat(clock, doubt=0.0)
    clock.now += LIMIT + 1
    assert beating.problem() == "the event loop has been stuck for 11 s"
    clock.now += 60
    assert beating.problem() == "the event loop has been stuck for 71 s"
    beating.beat()
    assert beating.problem() == ""


def test_a_process_that_was_stopped_and_goes_on_is_not_stuck() -> None:
    """Its last beat is old, and whoever asks is told nothing before the next one, which comes at once."""
    clock = Clock()
    beating = Heartbeat(clock, doubt=3600.0)
    clock.now += 300
    clock.asked.clear()
    told: list[str] = []
    asking = threading.Thread(target=lambda: told.append(beating.problem()), daemon=True)
    asking.start()
    assert clock.asked.wait(10)
    beating.beat()  # waits until who asks has begun to wait, as both take the same lock
    asking.join(10)
    assert told == [""]


def test_waiting_for_a_beat_ends_before_a_probe_gives_up() -> None:
    """The manifests give probes 5 s; and beats come many times in the time that one is good for."""
    assert DOUBT + http.ANSWER_WITHIN < 5
    assert INTERVAL * 5 < LIMIT


async def test_a_real_loop_beats_as_long_as_it_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is kept by a call is stuck, and no longer when it goes on."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.0)
    monkeypatch.setattr(heartbeat, "LIMIT", 0.0)
    beating = Heartbeat(doubt=10.0)
    task = asyncio.create_task(beating.run())
    assert await asyncio.to_thread(beating.problem) == ""
    beating._doubt = 0.01
    assert beating.problem().startswith("the event loop has been stuck for ")  # asked by the loop itself, so kept by it
    beating._doubt = 10.0
    assert await asyncio.to_thread(beating.problem) == ""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
