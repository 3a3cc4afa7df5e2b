"""The model of the supervisor held against the supervisor: the same events befall both, and both come to the same.

The plugin, the stand-in kubelet and the sockets between them are real. Time alone is the test's: it passes where the
model says so, and then all deadlines and pauses are over.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.errors import RegistrationFailedError
from aosp_plugin.framework.aio import background_task, wait_any
from aosp_plugin.framework.deviceplugin import supervisor as real
from aosp_plugin.framework.deviceplugin.kubelet_client import register
from aosp_plugin.framework.deviceplugin.servicer import Servicer
from aosp_plugin.testing import Kubelet
from aosp_plugin.testing.registration import PENDING
from tests.model.events import Event, happen, quiet, reachable
from tests.model.supervisor import Manner, Phase, State
from tests.support import IN_LIFE, PATIENCE, RESOURCE, DeviceDirectory, make_plugin, sockets

if TYPE_CHECKING:
    from aosp_plugin.framework.api import deviceplugin_pb2 as pb

LONG = 100.0
"""Seconds: more than any deadline or pause has."""

WALKS, EVENTS, TWO_AT_ONCE = 20, 60, 0.3
"""Walks, events in each before it ends with STOP, and how often two come at once."""


class Time:
    """The supervisor's time, which passes when the test says so, and what the supervisor waits for meanwhile."""

    def __init__(self) -> None:
        self._now = 0.0
        self._passed = asyncio.Event()
        self._late = asyncio.Event()
        self.waits_for: tuple[asyncio.Event, ...] = ()
        self.servicer: Servicer | None = None
        """Of the newest registration."""
        self.moved = asyncio.Event()
        """Set whenever the supervisor begins to wait."""

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the supervisor go by it."""
        monkeypatch.setattr(real, "time", SimpleNamespace(monotonic=lambda: self._now, time=time.time))
        monkeypatch.setattr(real, "wait_any", self._any_set)
        monkeypatch.setattr(real, "register", self._register_in_time)
        monkeypatch.setattr(real, "Servicer", self._serve)

    def passes(self) -> None:
        """Have so much time pass that everything is over."""
        self._now += LONG
        self._passed.set()
        self._late.set()

    def _serve(self, *arguments: Any) -> Servicer:
        self.servicer = Servicer(*arguments)
        return self.servicer

    async def _any_set(self, *events: asyncio.Event, timeout: float) -> bool:  # noqa: ARG002 - it is the test's time
        self.waits_for = events
        self.moved.set()
        try:
            return await wait_any(*events, self._passed)
        finally:
            self.waits_for = ()
            self._passed.clear()

    async def _register_in_time(self, path: str, request: pb.RegisterRequest, _deadline: float) -> None:
        self._late = asyncio.Event()
        answered = asyncio.Event()
        async with background_task(register(path, request, 2 * PATIENCE)) as call:
            call.add_done_callback(lambda _: answered.set())
            await wait_any(answered, self._late)
            if not call.done():
                raise RegistrationFailedError("DEADLINE_EXCEEDED")
            call.result()


class Walk:
    """A plugin and a kubelet that events befall."""

    def __init__(self, device_directory: DeviceDirectory, kubelet_dir: str, clock: Time) -> None:
        """Start the plugin; the kubelet does not run yet."""
        self.kubelet = Kubelet(kubelet_dir)
        self.plugin = make_plugin(device_directory, kubelet_dir, timings=IN_LIFE)
        self._supervisor = self.plugin._supervisor
        self._clock = clock
        self.task = asyncio.create_task(self.plugin.run())
        self.task.add_done_callback(lambda _: clock.moved.set())

    async def happen(self, event: Event) -> None:
        """Have it befall them."""
        sock = self.kubelet.socket_path
        match event:
            case Event.STARTS:
                await self.kubelet.start()
            case Event.DIES:
                await self.kubelet.stop()
            case Event.VANISHES:
                os.unlink(sock)
            case Event.RENEWED:
                os.chmod(sock, 0o700)  # ctime is another one then, by which a socket is told from the next
            case Event.DROPS:
                await self.kubelet.drop_streams()
            case Event.SWEPT:
                for name in sockets(self.kubelet.directory):
                    os.unlink(os.path.join(self.kubelet.directory, name))
            case Event.TIME:
                self._clock.passes()
            case Event.STOP:
                self.plugin.stop()
            case _:
                self._behave(Manner[event.name])

    def _behave(self, manner: Manner) -> None:
        faults = self.kubelet.faults
        faults.refuse_register = "not today" if manner is Manner.REFUSES else None
        faults.never_open_stream = manner is Manner.MUTE
        if manner is Manner.HANGS:
            faults.hang_register = True
        else:
            faults.release_register()

    def phase(self) -> Phase | None:
        """Return what the supervisor is about; None while it goes on by itself."""
        if self.task.done():
            return Phase.STOPPED
        waits_for = self._clock.waits_for
        if not waits_for or any(event.is_set() for event in waits_for):
            return None
        if len(waits_for) == 2:
            waits = self._supervisor.problem.startswith("waiting for kubelet")
            return Phase.WAITING if waits else Phase.PAUSING
        streams = self.kubelet.resource(RESOURCE).streams
        if not self._supervisor.problem:
            return Phase.STREAMING if streams == 1 else None
        if self._clock.servicer is not None and self._clock.servicer.stream_opened in waits_for:
            return Phase.REGISTERED if streams == 0 else None
        served = sockets(self.kubelet.directory)
        arrived = any(one.endpoint in served and one.outcome == PENDING for one in self.kubelet.registrations)
        return Phase.REGISTERING if arrived else None

    async def after(self, events: list[Event], states: set[State]) -> set[State]:
        """Have events befall the walk, which is like one of ``states``; return those that it is like then."""
        for event in events:
            states = all_after(event, states)
            await self.happen(event)
        return await self._settled(quiet(reachable(states)))

    async def _settled(self, expected: set[State]) -> set[State]:
        """Wait until it is as one of these; return those that it is like."""
        self._clock.moved.clear()
        self._supervisor._files.notify()  # it looks once more, at whatever inotify has not told of yet
        try:
            async with asyncio.timeout(PATIENCE):
                await self._clock.moved.wait()
                while True:
                    seen = self.phase()
                    served = bool(sockets(self.kubelet.directory))
                    alike = {one for one in expected if one.phase is seen and one.own is served}
                    if alike:
                        return alike
                    await wait_any(self._clock.moved, self.kubelet._changed, timeout=0.05)
                    self._clock.moved.clear()
        except TimeoutError:
            phases = sorted({state.phase for state in expected})
            raise AssertionError(f"{self.phase()}, not {phases}; {self.kubelet.describe()}") from None


def all_after(event: Event, states: set[State]) -> set[State]:
    """Return the states right after an event that may come at any moment from now on."""
    if event is Event.STARTS:
        states = all_after(Event.SWEEPS, states)
    before = reachable(states)
    return {new for state in before if (new := happen(event, state)) is not None}


def possible(states: set[State], *, at_once: bool) -> list[Event]:
    """Return what can happen whichever of the states it is in.

    The stand-in sweeps and starts at once. ``at_once``: right after another event, when deadlines may not run yet, and
    a call that no longer hangs may not have gone on, which the stand-in can't keep from going on.
    """
    never = {Event.STOP, Event.SWEEPS} | ({Event.TIME, Event.HANGS} if at_once else set())
    return [event for event in Event if event not in never and all(happen(event, state) for state in states)]


@pytest.mark.parametrize("seed", range(WALKS))
async def test_the_supervisor_does_as_the_model_does(
    seed: int, device_directory: DeviceDirectory, kubelet_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Event by event, and now and then two at once, on a walk drawn by chance."""
    rng, clock = random.Random(seed), Time()  # noqa: S311 - repeatable
    clock.patch(monkeypatch)
    walk, states = Walk(device_directory, kubelet_dir, clock), {State()}
    story: list[list[Event]] = []
    try:
        for _ in range(EVENTS):
            events = [rng.choice(possible(states, at_once=False) or [Event.STARTS])]
            then = possible(reachable(all_after(events[0], states)), at_once=True)
            if then and rng.random() < TWO_AT_ONCE:
                events.append(rng.choice(then))
            story.append(events)
            states = await walk.after(events, states)
        story.append([Event.STOP])
        await walk.after(story[-1], states)
    except AssertionError as error:
        raise AssertionError(f"{[[one.name for one in events] for events in story]}: {error}") from None
    finally:
        walk.plugin.stop()
        await walk.task
        await walk.kubelet.stop()
