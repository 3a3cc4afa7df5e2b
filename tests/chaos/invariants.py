"""What has to hold after each step, within a bound: a function each, which says what does not."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import TYPE_CHECKING

from tests.chaos.expected import Answer
from tests.chaos.plugin import Figures
from tests.chaos.registry import ViolationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.chaos.world import World

    Check = Callable[[World], Awaitable[str]]

BOUND = 30.0
"""Seconds after which whatever does not hold is a failure."""

SPARE = Figures(descriptors=8, threads=12, resident=60.0)
"""By how much a process may be above what it had at first: gRPC's threads come and go, and bursts leave arenas."""

CALM = 0.25
"""Seconds over which a process that has nothing to do is measured."""

BUSY = 0.2
"""Share of a processor that is too much then."""

INVARIANTS: list[Check] = []


def invariant(check: Check) -> Check:
    """Enter a check; they are asked in the order in which they are written down."""
    INVARIANTS.append(check)
    return check


@invariant
async def one_registration(world: World) -> str:
    """Each resource has one open stream with the kubelet, and one socket, which is the one that was registered."""
    sockets = set(world.sockets())
    for served in world.setup.served:
        view = world.kubelet.resource(served.name)
        if not view.connected or view.streams != 1:
            return f"{served.name} has {view.streams} streams, and is {'' if view.connected else 'not '}connected"
        last = [one for one in world.kubelet.registrations if one.resource_name == served.name][-1]
        if last.endpoint not in sockets:
            return f"{served.name} is registered at {last.endpoint}, and there is {sorted(sockets)}"
    if len(sockets) != len(world.setup.served):
        return f"there are the sockets {sorted(sockets)}"
    return ""


@invariant
async def the_kubelet_knows_what_is_there(world: World) -> str:
    """The devices that the kubelet has, and their health, are what the directory has."""
    views = {served: world.kubelet.resource(served.name) for served in world.setup.served}
    for served, view in views.items():
        if difference := world.model.difference(served, view.devices):
            return difference
    return ""


@invariant
async def the_spec_is_current(world: World) -> str:
    """The CDI spec has the devices that are fit and no others, and no file is left beside it."""
    if not world.setup.by_cdi:
        return ""
    (served,) = world.setup.served
    there = os.listdir(world.cdi) if os.path.isdir(world.cdi) else []
    devices = world.model.devices(served)
    sure = {device for device, seen in devices.items() if seen.fit is Answer.YES}
    perhaps = {device for device, seen in devices.items() if seen.fit is Answer.EITHER}
    wanted = [f"{served.name.replace('/', '_')}.json"]
    if there not in ([wanted] if sure else [wanted, []]):
        return f"the directory of CDI specs has {there}"
    named = set()
    for file in there:
        with open(os.path.join(world.cdi, file), encoding="utf-8") as text:
            named = {device["name"] for device in json.load(text)["devices"]}
    if not sure <= named <= sure | perhaps:
        return f"the CDI spec has {sorted(named - sure)[:5]} too many, {sorted(sure - named)[:5]} too few"
    return ""


@invariant
async def the_probes_are_well(world: World) -> str:
    """/healthz and /readyz answer 200."""
    for path in ("/healthz", "/readyz"):
        answer = await _get(world.port, path)
        if "200" not in answer.partition("\n")[0].split():
            return f"{path}: {' '.join(answer.split())[-200:]}"
    return ""


async def _get(port: int, path: str) -> str:
    """Return the answer to a request over HTTP, or why there was none."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return (await reader.read()).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        return f"no answer: {error!r}"


@invariant
async def nothing_leaks(world: World) -> str:
    """Descriptors, threads and memory are near what they were when this process was well for the first time."""
    now, before = world.plugin.figures(), world.plugin.baseline
    if before is None:
        return ""
    grown = now.above(before)
    for what, growth, spare in zip(Figures._fields, grown, SPARE, strict=True):
        if growth > spare:
            return f"{what} grew by {growth:.0f} from {before}"
    world.plugin.note(grown)
    return ""


@invariant
async def nothing_spins(world: World) -> str:
    """A process that has nothing to do uses next to nothing of the processor."""
    share = await world.plugin.processor_share(CALM)
    return f"it uses {share:.0%} of a processor with nothing to do" if share > BUSY else ""


async def settle(world: World) -> float:
    """Wait until everything holds; return since when (``time.monotonic``). Raises ViolationError."""
    started = time.monotonic()
    while True:
        if world.plugin.ended is not None:
            raise ViolationError(f"the plugin ended by itself, with {world.plugin.ended}")
        began = time.monotonic()
        problem = await first_problem(world)
        if not problem:
            break
        if time.monotonic() - started > BOUND:
            raise ViolationError(f"after {BOUND:g} s: {problem}")
        await asyncio.sleep(0.02)
    told = {served.name: world.kubelet.resource(served.name).devices for served in world.setup.served}
    world.model.agree(told)
    if world.plugin.baseline is None:
        world.plugin.baseline = world.plugin.figures()
    return began


async def first_problem(world: World) -> str:
    """Return what does not hold now; empty where all does."""
    for check in INVARIANTS:
        if problem := await check(world):
            return f"{check.__name__.replace('_', ' ')}: {problem}"
    return ""
