"""The invariants, which must hold within a bound after each step. Each function returns the problem or ""."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from tests.chaos.expected import Answer
from tests.chaos.monitor import get, succeeds
from tests.chaos.plugin import Figures
from tests.chaos.registry import BOUND, ViolationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from tests.chaos.world import World

    Check = Callable[[World], Awaitable[str]]

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
    """The CDI spec has exactly the healthy devices; in its directory are at most temporary files of killed plugins."""
    if not world.setup.by_cdi:
        return ""
    (served,) = world.setup.served
    names = os.listdir(world.cdi) if os.path.isdir(world.cdi) else []
    files = [name for name in names if not name.endswith(".tmp")]
    devices = world.model.devices(served)
    sure = {device for device, state in devices.items() if state.healthy is Answer.YES}
    perhaps = {device for device, state in devices.items() if state.healthy is Answer.EITHER}
    expected = [f"{served.name.replace('/', '_')}.json"]
    if files not in ([expected] if sure else [expected, []]) or len(names) - len(files) >= world.plugin.starts:
        return f"the directory of CDI specs has {names} at start {world.plugin.starts} of the plugin"
    named = world.named_in_spec()
    if not sure <= named <= sure | perhaps:
        return f"unexpected in the CDI spec: {sorted(named - sure)[:5]}, missing: {sorted(sure - named)[:5]}"
    return ""


@invariant
async def process_is_alive(world: World) -> str:
    """/healthz and /status return 200."""
    for path in ("/healthz", "/status"):
        if not succeeds(answer := await get(world.port, path)):
            return f"{path}: {' '.join(answer.split())[-200:]}"
    return ""


@invariant
async def process_is_ready(world: World) -> str:
    """/readyz returns 200."""
    if not succeeds(answer := await get(world.port, "/readyz")):
        return f"/readyz: {' '.join(answer.split())[-200:]}"
    return ""


@invariant
async def files_are_watched(world: World) -> str:
    """File events are used instead of polling."""
    polling = _value(await get(world.port, "/metrics"), "aosp_plugin_polling")
    return "" if polling == 0 else f"aosp_plugin_polling is {polling}"


def _value(metrics: str, series: str) -> float | None:
    """Return the value of a series, or None if there is none."""
    values = (line.rpartition(" ")[2] for line in metrics.splitlines() if line.startswith(f"{series} "))
    return next(map(float, values), None)


@invariant
async def nothing_leaks(world: World) -> str:
    """File descriptors, threads and memory are close to the process's first measurement."""
    now, before = world.plugin.figures(), world.plugin.baseline
    if before is None:
        return ""
    for what, growth, spare in zip(Figures._fields, now.above(before), SPARE, strict=True):
        if growth > spare:
            return f"{what} grew by {growth:.0f} from {before}"
    return ""


@invariant
async def nothing_spins(world: World) -> str:
    """An idle process uses almost no CPU time."""
    share = await world.plugin.processor_share(CALM)
    return f"the idle process uses {share:.0%} of a CPU" if share > BUSY else ""


async def settle(world: World, *, excused: Collection[str] = ()) -> float:
    """Wait until all invariants hold except the excused ones; return since when (``time.monotonic``).

    Raises ViolationError if that takes longer than ``BOUND`` seconds.
    """
    started = time.monotonic()
    while True:
        world.monitor.check()
        if world.plugin.ended is not None:
            raise ViolationError(f"the plugin ended with exit code {world.plugin.ended}")
        began = time.monotonic()
        problem = await first_problem(world, excused)
        if not problem:
            break
        if time.monotonic() - started > BOUND:
            raise ViolationError(f"after {BOUND:g} s: {problem}")
        await asyncio.sleep(0.02)
    world.model.agree()
    if world.plugin.baseline is None:
        world.plugin.baseline = world.plugin.figures()
    return began


async def first_problem(world: World, excused: Collection[str] = ()) -> str:
    """Return the first invariant that does not hold now, or ""."""
    for check in INVARIANTS:
        if check.__name__ in excused:
            continue
        if problem := await check(world):
            return f"{check.__name__.replace('_', ' ')}: {problem}"
    return ""
