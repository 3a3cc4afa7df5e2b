"""The supervisor and its model reach the same states after the same random events.

The plugin, the stand-in kubelet and their sockets are real. Only the time is simulated: it passes when the model
lets it pass, and then all deadlines and pauses are over.
"""

import asyncio
import os
import random

import pytest

from aosp_plugin.framework.aio import background_task, wait_any
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.deviceplugin import supervisor as real
from aosp_plugin.framework.deviceplugin.supervisor import register
from aosp_plugin.framework.errors import RegistrationFailedError
from aosp_plugin.framework.timings import Clock
from kubelet_standin import Kubelet
from kubelet_standin.registration import PENDING
from tests.model.events import Event, happen, quiet, reachable
from tests.model.supervisor import Manner, Phase, State
from tests.support import IN_LIFE, PATIENCE, RESOURCE, DeviceDirectory, make_plugin, sockets

LONG = 100.0
"""Seconds; longer than any deadline or pause."""

WALKS, EVENTS, TWO_AT_ONCE = 3, 60, 0.3
"""Number of walks, of events in each before STOP, and the probability of two events at once."""


class SupervisorClock(Clock):
    """The supervisor's time, which the test controls, and what the supervisor is waiting for."""

    def __init__(self) -> None:
        self._now = 0.0
        self._passed = asyncio.Event()
        self._late = asyncio.Event()
        self.waits_for: tuple[asyncio.Event, ...] = ()
        self.moved = asyncio.Event()
        """Set whenever the supervisor starts to wait."""

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the time of the kubelet's answer be that of this clock as well."""
        monkeypatch.setattr(real, "register", self._register_in_time)

    def passes(self) -> None:
        """Let so much time pass that all deadlines and pauses are over."""
        self._now += LONG
        self._passed.set()
        self._late.set()

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    async def wait(self, *events: asyncio.Event, timeout: float | None = None) -> bool:  # noqa: ARG002 - as above
        """Wait for an event, or until the time passes."""
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


class RandomWalk:
    """A plugin and a kubelet to which random events happen."""

    def __init__(self, device_directory: DeviceDirectory, kubelet_dir: str, clock: SupervisorClock) -> None:
        """Start the plugin; the kubelet does not run yet."""
        self.kubelet = Kubelet(kubelet_dir)
        self.plugin = make_plugin(device_directory, kubelet_dir, timings=IN_LIFE)
        self._supervisor = self.plugin._registration
        self._supervisor._clock = clock
        self._clock = clock
        self.task = asyncio.create_task(self.plugin.run())
        self.task.add_done_callback(lambda _: clock.moved.set())

    async def happen(self, event: Event) -> None:
        """Apply an event to plugin or kubelet."""
        sock = self.kubelet.socket_path
        match event:
            case Event.STARTS:
                await self.kubelet.start()
            case Event.DIES:
                await self.kubelet.stop()
            case Event.VANISHES:
                os.unlink(sock)
            case Event.RECREATED:
                status = os.stat(sock)  # a successor has another time of creation, even with the same inode number
                os.utime(sock, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
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
        """Return the phase of the supervisor; None while it is still working."""
        if self.task.done():
            return Phase.STOPPED
        waits_for = self._clock.waits_for
        if not waits_for or any(event.is_set() for event in waits_for):
            return None
        supervisor = self._supervisor
        if not supervisor.endpoint:
            return Phase.WAITING if supervisor.problem.startswith("waiting for kubelet") else Phase.PAUSING
        streams = self.kubelet.resource(RESOURCE).streams
        if supervisor.registered:
            return Phase.STREAMING if streams == 1 else None
        if supervisor._response is not None and supervisor._response.done():
            return Phase.REGISTERED if streams == 0 else None
        served = sockets(self.kubelet.directory)
        arrived = any(one.endpoint in served and one.outcome == PENDING for one in self.kubelet.registrations)
        return Phase.REGISTERING if arrived else None

    async def after(self, events: list[Event], states: set[State]) -> set[State]:
        """Apply events to a walk in one of ``states``; return the states in which it may be afterwards."""
        for event in events:
            states = all_after(event, states)
            await self.happen(event)
        return await self._settled(quiet(reachable(states)))

    async def _settled(self, expected: set[State]) -> set[State]:
        """Wait until the walk matches some of the expected states; return these."""
        self._clock.moved.clear()
        self._supervisor._monitor._files.notify()  # check again, for changes that inotify has not reported yet
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
    """Return the states right after an event that comes at any moment from now on."""
    if event is Event.STARTS:
        states = all_after(Event.SWEEPS, states)
    before = reachable(states)
    return {new for state in before if (new := happen(event, state)) is not None}


def possible(states: set[State], *, at_once: bool) -> list[Event]:
    """Return the events that are possible in all of the states.

    The stand-in sweeps and starts at once. ``at_once``: right after another event, when deadlines may not have started,
    and a call that no longer hangs may already have returned.
    """
    never = {Event.STOP, Event.SWEEPS} | ({Event.TIME, Event.HANGS} if at_once else set())
    return [event for event in Event if event not in never and all(happen(event, state) for state in states)]


@pytest.mark.parametrize("seed", range(WALKS))
async def test_supervisor_behaves_like_its_model(
    seed: int, device_directory: DeviceDirectory, kubelet_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are random; sometimes two of them come at once."""
    rng, clock = random.Random(seed), SupervisorClock()  # noqa: S311 - repeatable
    clock.patch(monkeypatch)
    walk, states = RandomWalk(device_directory, kubelet_dir, clock), {State()}
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
