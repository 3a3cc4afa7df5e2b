"""One seed from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

import click

from aosp_plugin.testing import Behaviour
from tests.chaos import choice, setups
from tests.chaos.invariants import settle
from tests.chaos.registry import FAULTS, ViolationError
from tests.chaos.world import world

if TYPE_CHECKING:
    from tests.chaos.choice import Step
    from tests.chaos.tally import Tally
    from tests.chaos.world import World

LOG_LINES = 40
"""Of the plugin's log, where something fails."""


class FailedError(Exception):
    """A seed in which something did not hold; the text is all that one needs to find out why."""


async def run(seed: int, steps: int, tally: Tally, *, namespace: bool) -> None:
    """Run a seed and count what happened. Raises FailedError."""
    setup = setups.of_seed(seed)
    behaviour = random.Random(seed).choice(list(Behaviour))  # noqa: S311 - repeatable, not secret
    can = {"namespace"} if namespace else set()
    possible = [fault for fault in FAULTS.values() if fault.needs <= can]
    say(f"seed {seed}: {setup.name}, kubelet {behaviour.value}")
    number = 0
    told: list[str] = []
    async with world(setup, behaviour, seed, namespace=namespace) as made:
        try:
            await settle(made)
            for number, step in enumerate(choice.plan(seed, steps, possible), 1):
                told.append(f"{number:4} {', '.join(step.faults)}")
                seconds = await take(made, step)
                tally.settled(step.faults, seconds)
                say(f"{told[-1]}  {seconds:.2f} s")
        except Exception as error:
            raise FailedError(_report(made, seed, number, told, error)) from error
        tally.ended(seed, made)


async def take(made: World, step: Step) -> float:
    """Have one step happen; return after how many seconds all was well. Raises ViolationError."""
    rngs = [random.Random(f"{step.seed}/{number}") for number in range(len(step.faults))]  # noqa: S311
    async with contextlib.AsyncExitStack() as lasting:
        for name, rng in zip(step.faults, rngs, strict=True):
            await lasting.enter_async_context(FAULTS[name].befall(made, rng))
            await _use(made, rng)
        during = [FAULTS[name] for name in step.faults if FAULTS[name].lasts]
        if during:
            await asyncio.sleep(rngs[0].uniform(0.05, 1.5))
            await _use(made, rngs[0])
            if all(fault.livable for fault in during):
                await settle(made)
    over = time.monotonic()
    await _use(made, rngs[0])
    seconds = await settle(made) - over
    await made.pods.ask_for_two(rngs[0])
    await made.pods.come_and_go(rngs[0], calm=True)
    return seconds


async def _use(made: World, rng: random.Random) -> None:
    """Have pods come and go at once, while the plugin may not know yet what happened."""
    if made.plugin.ended is not None:
        raise ViolationError(f"the plugin ended by itself, with {made.plugin.ended}")
    await made.pods.ask_in_vain(rng)
    await made.pods.come_and_go(rng, calm=False)


def _report(made: World, seed: int, number: int, told: list[str], error: Exception) -> str:
    what = str(error) if isinstance(error, ViolationError) else f"{type(error).__name__}: {error}"
    return "\n".join(
        [
            f"seed {seed}, step {number}: {what}",
            "the faults so far:",
            *told,
            made.kubelet.describe(),
            f"the plugin's sockets: {made.sockets()}",
            "the end of the plugin's log:",
            made.plugin.said(LOG_LINES),
            f'again: make chaos CHAOS="--seed {seed} --steps {max(number, 1)}"',
        ]
    )


def say(text: str) -> None:
    """Print a line at once."""
    click.echo(text)


def without_namespaces() -> list[str]:
    """Return the names of the faults that are left out where there are no namespaces."""
    return sorted(fault.name for fault in FAULTS.values() if fault.needs)
