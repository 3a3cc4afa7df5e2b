"""A run: faults at random times, and then quiet, in which everything has to recover."""

import asyncio
import collections
import contextvars
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tests.simulation.claims import STATE
from tests.simulation.faults import FAULTS, Undo
from tests.simulation.loop import SimulatedLoop
from tests.simulation.readers import SCRAPES
from tests.simulation.settings import TTL
from tests.simulation.system import LOADER, simulated
from tests.simulation.world import OPERATOR, Signal, World

with LOADER.importing():
    from aosp_plugin.framework.conditions import API_SERVER_FAILING, CLAIMS_UNSERVED, SLICES_MISSING, WITHHELD
    from aosp_plugin.framework.podresources_client import ALLOCATIONS_INTERVAL

BOUND = 200.0
"""Seconds without a fault after which nothing may be missing: the longest interval of the plugin is 120 s, from one
registration because of the kubelet's answer to the next one."""

RECOVERY = 8.0
"""Seconds after a fault that was alone since everything had recovered, after which nothing may be missing."""

SLOW_RECOVERY = {
    **dict.fromkeys(("claim_ends", "pod_ends"), ALLOCATIONS_INTERVAL + 5.0),
    "binderfs_is_mounted_again": TTL + 5.0,
    "device_is_removed": TTL + 5.0,
    "kubelet_loses_devices": 125.0,
    **dict.fromkeys(
        (
            "api_changes",
            "cdi_directory_moves",
            "count_is_lowered",
            "count_is_raised",
            "driver_is_renamed",
            "per_device_is_lowered",
            "per_device_is_raised",
            "phones_move",
            "plugin_reloads",
            "resource_is_renamed",
        ),
        OPERATOR + 5.0,
    ),
}
"""The same for faults after which something has to be waited for: the next question who has which device, the time for
which a replaced device is not trusted, the shortest time between two registrations because of the kubelet's answer, and
an operator who looks."""

SILENCE = 5.0
"""Seconds after which a signal says what is wrong, and after which no signal is left when nothing is wrong."""

BLIND = 75.0
"""The same while the plugin cannot know it yet: a host that hangs counts as such after 10 s, a change without an event
is found after 60 s, one that a broken watch does not report when the watch ends, and only the kubelet knows that it has
lost a list: it is asked every 30 s, twice."""

API_PAUSE = 35.0
"""The longest pause before the API server is asked again, so that many nodes do not overload it: until then, a signal
says that it did not answer."""

ASKED = {kind.name for kind in (API_SERVER_FAILING, CLAIMS_UNSERVED, SLICES_MISSING, WITHHELD)}
"""The kinds of signals that end only with the next question, to the API server or the kubelet, or look at records."""

ASKED_ERRORS = ("API server",)
"""What is in errors of pods that do so."""

PEACE = 130.0
"""Seconds without a fault, at the end of a run: more than the longest interval of the plugin."""

NOTICED = 1.5
"""Seconds in which the plugin notices whatever has changed, as long as nothing is slow."""

FORGOTTEN = 340.0
"""Seconds after the loss of a resource in which a kubelet has forgotten it, and its plugin has noticed that."""

RETRIED = ("container not started", "claim not prepared", "claim failed")
"""What is logged then as well: a kubelet retries for ever what cannot succeed, as a claim of a lost phone."""

UPDATE = 5.0
"""Seconds after which the kubelet knows what the plugin knows."""

TASKS = 140
"""Tasks of a plugin at rest, at the most. It has 42 to 85, and more if they add up."""

BURST = 30
"""Faults between two times of quiet, on average."""

RARE = {
    "kubelet_is_away": 2,
    "kubelet_restarts": 2,
    "kubelet_loses_devices": 2,
    "node_is_created_again": 4,
    "plugin_is_killed": 4,
    "plugin_is_killed_at_a_call": 4,
    "plugin_is_killed_at_an_await": 4,
    "plugin_is_stopped": 4,
    "plugin_reloads": 4,
    "api_changes": 6,
    "cdi_directory_moves": 6,
    "count_is_lowered": 4,
    "count_is_raised": 4,
    "driver_is_renamed": 6,
    "per_device_is_lowered": 4,
    "per_device_is_raised": 4,
    "phones_move": 6,
    "resource_is_renamed": 6,
    "second_plugin": 8,
}
"""Faults that are chosen less often, and by what factor: the plugin starts or registers again, which takes the
processor as long as ten other faults."""

LONGEST = 40.0
"""Seconds that a fault lasts, at the most."""


class Step(NamedTuple):
    """A fault."""

    pause: float
    """Seconds before it."""
    name: str
    lasts: float
    """Seconds, for faults that last."""
    seed: int
    """Of what is random in it."""
    is_last: bool
    """Whether quiet follows."""


@dataclass
class Result:
    """What a run has shown."""

    seed: int
    violations: list[str] = field(default_factory=list)
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    changes: collections.Counter[str] = field(default_factory=collections.Counter)
    """Changes of the configuration, by their kind and by how they were applied."""
    recoveries: dict[str, float] = field(default_factory=dict)
    """The longest recovery in simulated seconds, by the last fault before the quiet."""
    silence: float = 0.0
    """The longest time in which something was wrong and no signal said so, although the plugin could know."""
    echo: float = 0.0
    """The longest time in which a signal was left although nothing was wrong and no fault lasted."""
    lines: list[str] = field(default_factory=list)


def steps_of(seed: int, count: int, only: Sequence[str] = ()) -> list[Step]:
    """Return the faults of a seed, if given of these kinds alone."""
    rng = random.Random(f"steps {seed}")  # noqa: S311 - a simulation
    names = sorted(only or FAULTS)
    weights = [1 / RARE.get(name, 1) for name in names]
    return [
        Step(
            rng.choice((0.0, rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.5), rng.uniform(0.0, 4.0))),
            rng.choices(names, weights)[0],
            min(rng.expovariate(1 / 8.0), LONGEST),
            rng.getrandbits(32),
            rng.random() < 1 / BURST or number == count - 1,
        )
        for number in range(count)
    ]


def run(seed: int, steps: list[Step]) -> Result:
    """Run faults on a new node."""
    result = Result(seed)
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(_run(result, steps), context=contextvars.Context())  # in no process
    return result


async def _run(result: Result, steps: list[Step]) -> None:
    world = World(result.seed)
    with simulated(world.host):
        world.set_up()
        await _recovered(world, result, "start")
        world.spawn(_Signals(world, result).run())
        world.spawn(world.readers.run())
        lasting: list[Undo] = []
        alone = True
        for step in steps:
            await asyncio.sleep(step.pause)
            world.rng = random.Random(step.seed)  # noqa: S311 - a simulation
            world.host.log("FAULT", name=step.name)
            result.faults[step.name] += 1
            undo = FAULTS[step.name](world)
            if world.reconfigured:
                result.changes[f"{step.name} by {world.reconfigured}"] += 1
                world.reconfigured = ""
            if undo is not None:
                ends = _once(world, step.name, undo)
                lasting.append(ends)
                world.host.later(step.lasts, ends)
            if step.is_last:
                if alone:
                    await asyncio.sleep(step.lasts)
                for ends in lasting:
                    ends()
                lasting.clear()
                await _recovered(world, result, step.name, alone=alone)
            alone = step.is_last
            if world.host.violations:
                break
        if not world.host.violations:
            await _check_peace(world)
            await world.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(5.0)
    result.violations, result.lines = world.host.violations, world.host.lines


def _once(world: World, name: str, undo: Undo) -> Undo:
    """Return what ends a fault, once."""
    is_over = False

    def end() -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            world.host.log("FAULT ends", name=name)
            undo()

    return end


class _Signals:
    """Checks at all times that a signal says what is wrong.

    Each device and each claim has a time of its own, from when it went wrong or from the last signal of its resource:
    two faults in a row are not one that lasts, and neither another fault nor another resource excuses one.
    """

    def __init__(self, world: World, result: Result) -> None:
        self._world, self._result = world, result
        self._told: dict[str, float] = {}
        """Until when each thing that is wrong had a signal, or was not wrong."""
        self._known: dict[str, float] = {}
        """The same, or the plugin could not know it."""
        self._changes: tuple[int, ...] = ()

    async def run(self) -> None:
        """Look every quarter of a second."""
        while True:
            self.check()
            await asyncio.sleep(0.25)

    def check(self) -> None:
        """Look once, unless nothing was wrong and nothing has changed."""
        world, now = self._world, asyncio.get_running_loop().time()
        before, self._changes = self._changes, world.changes()
        if self._changes == before and not self._told:
            return
        world.claims.check_names()
        wrong = {*world.missing(), *world.vanished()}
        told = {signal.about for signal in world.signals()} if wrong else set()
        silent = {each for each in wrong if each.partition(":")[0] not in told}
        blind = silent if world.is_blind() else {each for each in silent if world.is_unknown(each)}
        self._told = {each: self._told.get(each, now) if each in silent else now for each in wrong}
        self._known = {each: self._known.get(each, now) if each in silent - blind else now for each in wrong}
        silence, longest = (now - min(since.values(), default=now) for since in (self._known, self._told))
        self._result.silence = max(self._result.silence, silence)
        if silence > SILENCE or longest > BLIND:
            world.host.violated(f"no signal for {longest:.0f} s: {'; '.join(sorted(silent))}")


async def _recovered(world: World, result: Result, name: str, *, alone: bool = False) -> None:
    """Wait until nothing is missing, and no signal and nothing of an ended claim is left."""
    loop = asyncio.get_running_loop()
    began = current = silent = loop.time()
    recovered = None
    alone = alone and not world.host.is_without_events()  # the plugin may still watch what is no longer mounted
    world.host.log("QUIET")
    while not world.host.violations:
        missing = [*world.look_as_operator(), *world.missing()]
        signals, left = world.signals(is_recovered=True), world.left()
        if world.runbook.changed:
            began = loop.time()
        if missing:
            recovered = None
        elif recovered is None:
            recovered = loop.time()
            _check_recovery(world, result, name, recovered - began, alone=alone)
        is_recovered = recovered is not None and loop.time() >= recovered + NOTICED and not (signals or left)
        if is_recovered and await _is_settled(world):
            return
        if not (outdated := world.outdated()):
            current = loop.time()
        elif loop.time() - current > UPDATE:
            world.host.violated(f"not updated for {UPDATE:.0f} s: {'; '.join(outdated)}")
        if left or not signals:
            silent = loop.time()
        elif recovered is not None:
            _check_echo(world, result, loop.time() - max(recovered, silent), signals)
        _check_bound(world, loop.time() - began, "recovered", [*missing, *map(str, signals), *left])
        await asyncio.sleep(0.25)


def _check_recovery(world: World, result: Result, name: str, seconds: float, *, alone: bool) -> None:
    """Check that a fault which was alone did not take too long to recover from."""
    result.recoveries[name] = max(result.recoveries.get(name, 0.0), seconds)
    limit = SLOW_RECOVERY.get(name, RECOVERY)
    if alone and seconds > limit:
        world.host.violated(f"{name} alone: recovered after {seconds:.1f} s, not {limit:.0f} s")


def _check_bound(world: World, seconds: float, what: str, wrong: list[str]) -> None:
    """Check that what is wrong does not last too long."""
    if seconds > BOUND:
        world.host.violated(f"not {what} after {BOUND:.0f} s: {'; '.join(wrong)}")


async def _is_settled(world: World) -> bool:
    """Wait until nothing is wrong of what no signal reports; return whether nothing was.

    Otherwise, the plugin may have noticed meanwhile that something else is wrong.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    await _until_none(world, "returned", partial(_unreturned, world))
    await _until_none(world, "linked", world.wrong_links)
    await _until_none(world, "counted", world.misreported)
    scrapes = world.witnesses.random() < SCRAPES
    await _until_none(world, "read", partial(world.readers.settled, scrapes=scrapes))
    return loop.time() == began


async def _until_none(world: World, what: str, find: Callable[[], list[str]]) -> None:
    """Wait until nothing is wrong of what no signal reports."""
    began = asyncio.get_running_loop().time()
    while (wrong := find()) and not world.host.violations:
        _check_bound(world, asyncio.get_running_loop().time() - began, what, wrong)
        await asyncio.sleep(1.0)


def _is_asked(signal: Signal) -> bool:
    """Return whether a signal ends only with the next question, to the API server or the kubelet."""
    return signal.kind in ASKED or (not signal.kind and any(text in signal.text for text in ASKED_ERRORS))


def _check_echo(world: World, result: Result, seconds: float, signals: list[Signal]) -> None:
    """Check the time for which a signal is left although nothing is wrong."""
    asked = {signal.about for signal in signals if _is_asked(signal)}
    limit = API_PAUSE if all(signal.about in asked for signal in signals) else SILENCE
    if limit == SILENCE:
        result.echo = max(result.echo, seconds)
    if seconds > limit:
        world.host.violated(f"a signal {limit:.0f} s after the recovery: {'; '.join(map(str, signals))}")


async def _check_peace(world: World) -> None:
    """Check that a plugin at rest registers, writes and logs nothing, but what a kubelet tries for ever.

    The phone of a container that cannot start is made fresh before each attempt.
    """
    for process in (world.process, world.provisioner.process):
        process.killed_at_call = None  # it has not made so many calls
    if world.kubelet.forgetting:  # no plugin can know it before
        await asyncio.sleep(FORGOTTEN)
    await asyncio.sleep(PEACE)  # what follows from the last faults may be late
    before = len(world.host.lines)
    await asyncio.sleep(PEACE)
    if untold := [*world.node.untold()]:
        world.host.violated(f"not told after {2 * PEACE:.0f} s: {'; '.join(untold)}")
    lines = world.host.lines[before:]
    expected = [*RETRIED, *(["phone replaced"] if any("container not started" in line for line in lines) else [])]
    if any(len(pod.devices) > 1 and not pod.names for pod in world.claims.pods.values()):
        expected.append("info: claim prepared")  # by one of the drivers, until the other one does
    if more := [line for line in lines if not any(text in line for text in expected)]:
        world.host.violated(f"something happens without a cause: {'; '.join(more[:3])}")


def _unreturned(world: World) -> list[str]:
    """Return the descriptors and tasks of the process, but those of locks that it holds until it ends.

    A worker may have a file open just now.
    """
    open_files = [
        each.path for each in world.process.descriptors.values() if not (each.shares or each.path.startswith(STATE))
    ]
    tasks = len(world.process.tasks)
    return [*open_files, *([f"{tasks} tasks"] if tasks > TASKS else [])]


def kind_of(result: Result) -> str:
    """Return what has failed, without times and names that differ from run to run; empty if nothing has."""
    return ": ".join(re.split(": |; ", re.sub(r"[0-9.]+", "N", next(iter(result.violations), "")))[1:4])


def shrunk(seed: int, steps: list[Step], kind: str) -> list[Step]:
    """Return the few of the faults that are enough for a violation of this kind: no run of them can be left out."""
    before = len(steps) + 1
    while len(steps) < before:
        before = size = len(steps)
        while size := size // 2:
            start = 0
            while start < len(steps):
                cases = _without(steps, start, start + size)
                fewer = next((case for case in cases if case and kind_of(run(seed, case)) == kind), None)
                if fewer is None:
                    start += size
                else:
                    steps = fewer
    return steps


def _without(steps: list[Step], start: int, end: int) -> Iterator[list[Step]]:
    """Yield all other steps, each at its time, and then each after its pause."""
    pause = sum(step.pause for step in steps[start:end])
    if end < len(steps):
        later = steps[end]._replace(pause=steps[end].pause + pause)
        yield _closed([*steps[:start], later, *steps[end + 1 :]])
    yield _closed(steps[:start] + steps[end:])


def _closed(steps: list[Step]) -> list[Step]:
    """Return steps of which the last one is followed by quiet."""
    return [*steps[:-1], steps[-1]._replace(is_last=True)] if steps else []
