"""The invariants, which must hold within a bound after each step. Each function returns the problem or ""."""

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
"""The bound in seconds."""

SPARE = Figures(descriptors=8, threads=12, resident=60.0)
"""The allowed growth of a process: gRPC starts and ends threads, and bursts leave memory arenas."""

CALM = 0.25
"""The time in seconds over which an idle process is measured."""

BUSY = 0.2
"""The share of a CPU that an idle process may use."""

INVARIANTS: list[Check] = []


def invariant(check: Check) -> Check:
    """Register a check; checks run in the order of their definition."""
    INVARIANTS.append(check)
    return check


@invariant
async def one_registration(world: World) -> str:
    """Each resource has one open stream and one socket, which is the registered one."""
    sockets = set(world.sockets())
    for served in world.setup.served:
        view = world.kubelet.resource(served.name)
        if not view.connected or view.streams != 1:
            return f"{served.name} has {view.streams} streams, connected: {view.connected}"
        last = [
            registration for registration in world.kubelet.registrations if registration.resource_name == served.name
        ][-1]
        if last.endpoint not in sockets:
            return f"{served.name} is registered at {last.endpoint}, but the sockets are {sorted(sockets)}"
    if len(sockets) != len(world.setup.served):
        return f"the sockets are {sorted(sockets)}"
    return ""


@invariant
async def kubelet_has_the_devices(world: World) -> str:
    """The kubelet's devices and their health match the directory."""
    views = {served: world.kubelet.resource(served.name) for served in world.setup.served}
    for served, view in views.items():
        if difference := world.model.difference(served, view.devices):
            return difference
    return ""


@invariant
async def cdi_spec_is_current(world: World) -> str:
    """The CDI spec has exactly the healthy devices, and there is no other file in its directory."""
    if not world.setup.by_cdi:
        return ""
    (served,) = world.setup.served
    files = os.listdir(world.cdi) if os.path.isdir(world.cdi) else []
    devices = world.model.devices(served)
    sure = {device for device, state in devices.items() if state.healthy is Answer.YES}
    perhaps = {device for device, state in devices.items() if state.healthy is Answer.EITHER}
    expected = [f"{served.name.replace('/', '_')}.json"]
    if files not in ([expected] if sure else [expected, []]):
        return f"the directory of CDI specs has {files}"
    named = set()
    for file in files:
        with open(os.path.join(world.cdi, file), encoding="utf-8") as text:
            named = {device["name"] for device in json.load(text)["devices"]}
    if not sure <= named <= sure | perhaps:
        return f"unexpected in the CDI spec: {sorted(named - sure)[:5]}, missing: {sorted(sure - named)[:5]}"
    return ""


@invariant
async def probes_succeed(world: World) -> str:
    """/healthz and /readyz return 200."""
    for path in ("/healthz", "/readyz"):
        answer = await _get(world.port, path)
        if "200" not in answer.partition("\n")[0].split():
            return f"{path}: {' '.join(answer.split())[-200:]}"
    return ""


async def _get(port: int, path: str) -> str:
    """Return the response to an HTTP request, or the reason why there is none."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return (await reader.read()).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        return f"no response: {error!r}"


@invariant
async def nothing_leaks(world: World) -> str:
    """File descriptors, threads and memory are close to the process's first measurement."""
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
    """An idle process uses almost no CPU time."""
    share = await world.plugin.processor_share(CALM)
    return f"the idle process uses {share:.0%} of a CPU" if share > BUSY else ""


async def settle(world: World) -> float:
    """Wait until all invariants hold; return since when (``time.monotonic``). Raises ViolationError."""
    started = time.monotonic()
    while True:
        if world.plugin.ended is not None:
            raise ViolationError(f"the plugin ended with exit code {world.plugin.ended}")
        began = time.monotonic()
        problem = await first_problem(world)
        if not problem:
            break
        if time.monotonic() - started > BOUND:
            raise ViolationError(f"after {BOUND:g} s: {problem}")
        await asyncio.sleep(0.02)
    reported = {served.name: world.kubelet.resource(served.name).devices for served in world.setup.served}
    world.model.agree(reported)
    if world.plugin.baseline is None:
        world.plugin.baseline = world.plugin.figures()
    return began


async def first_problem(world: World) -> str:
    """Return the first invariant that does not hold now, or ""."""
    for check in INVARIANTS:
        if problem := await check(world):
            return f"{check.__name__.replace('_', ' ')}: {problem}"
    return ""
