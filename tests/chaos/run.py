"""One seed from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import traceback
from typing import TYPE_CHECKING

import click

from kubelet_standin import KubeletVersion
from tests.chaos import choice, setups
from tests.chaos.invariants import settle
from tests.chaos.registry import FAULTS, ViolationError
from tests.chaos.world import create_world

if TYPE_CHECKING:
    import collections
    from collections.abc import Collection

    from tests.chaos.choice import Step
    from tests.chaos.world import World

LOG_LINES = 40
"""The number of lines of the plugin's log that a failure prints."""


class FailedError(Exception):
    """A seed that failed; the message has the faults, the state and the log."""


async def run(
    seed: int, steps: int, tally: collections.Counter[str], *, only: Collection[str], namespace: bool
) -> None:
    """Run a seed and count its faults. ``only`` are parts of the names of the faults. Raises FailedError."""
    setup = setups.of_seed(seed)
    version = random.Random(seed).choice(list(KubeletVersion))  # noqa: S311 - repeatable, not secret
    wanted = [fault for fault in FAULTS.values() if any(text in fault.name for text in only)]
    possible = [fault for fault in wanted if namespace or not fault.namespaces]
    say(f"seed {seed}: {setup.name}, kubelet {version}")
    number = 0
    steps_so_far: list[str] = []
    async with create_world(setup, version, seed) as world:
        try:
            await settle(world)
            for number, step in enumerate(choice.plan(seed, steps, possible), 1):
                steps_so_far.append(f"{number:4} {', '.join(step.faults)}")
                seconds = await run_step(world, step)
                tally.update(step.faults)
                say(f"{steps_so_far[-1]}  {seconds:.2f} s")
        except Exception as error:
            raise FailedError(_report(world, seed, number, steps_so_far, error)) from error


async def run_step(world: World, step: Step) -> float:
    """Run a step; return the seconds until all invariants held. Raises ViolationError."""
    rngs = [random.Random(f"{step.seed}/{number}") for number in range(len(step.faults))]  # noqa: S311
    async with contextlib.AsyncExitStack() as lasting:
        for name, rng in zip(step.faults, rngs, strict=True):
            await lasting.enter_async_context(FAULTS[name].inject(world, rng))
            await _use(world, rng)
        during = [FAULTS[name] for name in step.faults if FAULTS[name].lasts]
        if during:
            await asyncio.sleep(rngs[0].uniform(0.05, 1.5))
            await _use(world, rngs[0])
            if all(fault.livable for fault in during):
                await settle(world, excused={name for fault in during for name in fault.excuses})
                await _check_pods(world, rngs[0])
    over = time.monotonic()
    await _use(world, rngs[0])
    seconds = await settle(world) - over
    await _check_pods(world, rngs[0])
    return seconds


async def _check_pods(world: World, rng: random.Random) -> None:
    """Request devices of all kinds from a plugin that knows the state of all devices."""
    await world.pods.request_unhealthy(rng, calm=True)
    await world.pods.create_and_end(rng, calm=True)


async def _use(world: World, rng: random.Random) -> None:
    """Create and end pods at once, possibly before the plugin has noticed the fault."""
    if world.plugin.ended is not None:
        raise ViolationError(f"the plugin ended with exit code {world.plugin.ended}")
    world.monitor.check()
    await world.pods.request_unhealthy(rng, calm=False)
    await world.pods.create_and_end(rng, calm=False)


def _report(world: World, seed: int, number: int, steps_so_far: list[str], error: Exception) -> str:
    message = str(error) if isinstance(error, ViolationError) else "".join(traceback.format_exception(error))
    if world.plugin.ended is not None:
        message += f" (the plugin ended with exit code {world.plugin.ended})"
    return "\n".join(
        [
            f"seed {seed}, step {number}: {message}",
            "faults so far:",
            *steps_so_far,
            world.kubelet.describe(),
            f"sockets of the plugin: {world.sockets()}",
            "end of the plugin's log:",
            world.plugin.log_tail(LOG_LINES),
            f'repeat: make chaos CHAOS="--seed {seed} --steps {max(number, 1)}"',
        ]
    )


def say(text: str) -> None:
    """Print a line at once."""
    click.echo(text)
