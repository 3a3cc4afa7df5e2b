"""``python -m tests.chaos.claims``: the package's docstring describes it."""

from __future__ import annotations

import asyncio
import collections
import os
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from aosp_plugin.framework.apiserver import protocol
from kubelet_standin.apiserver import ApiServer
from tests.chaos.claims.faults import FAULTS
from tests.chaos.claims.invariants import violations
from tests.chaos.claims.world import DEVICES, NODE, World

BOUND: Final = 90.0
"""Seconds within which the invariants hold again after a step."""
INTERVAL: Final = 0.05
"""Seconds between two checks of the invariants: files change without an event for this process."""


class FailedError(Exception):
    """The invariants do not hold."""


@click.command()
@click.option("--seed", default=1, show_default=True, help="The first seed.")
@click.option("--steps", default=20, show_default=True, help="The number of steps of each seed.")
@click.option("--faults", "count", default=40, show_default=True, help="Run seeds until so many faults have happened.")
@click.option("--list", "listing", is_flag=True, help="Print the faults.")
def chaos(seed: int, steps: int, count: int, *, listing: bool) -> None:
    """Run a DRA driver under injected faults."""
    if listing:
        for name, fault in sorted(FAULTS.items()):
            click.echo(f"{name:30} {fault.__doc__}")
        return
    tally: collections.Counter[str] = collections.Counter()
    slowest, failed, started = 0.0, 0, time.monotonic()
    while tally.total() < count:
        try:
            slowest = max(slowest, asyncio.run(run(seed, steps, tally)))
        except FailedError as error:
            failed += 1
            click.echo(error)
        seed += 1
    for name, times in sorted(tally.items()):
        click.echo(f"{times:6} {name}")
    minutes = (time.monotonic() - started) / 60
    click.echo(
        f"{tally.total()} faults in {minutes:.0f} minutes, {failed} seeds failed; slowest recovery {slowest:.1f} s"
    )
    if failed:
        raise SystemExit(1)


async def run(seed: int, steps: int, tally: collections.Counter[str]) -> float:
    """Run one seed; return the longest time until the invariants held. Raises FailedError."""
    with tempfile.TemporaryDirectory(prefix="cc-") as name:
        async with ApiServer(tls=True) as server:
            server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
            world = World(Path(name), seed, server)
            async with world.kubelet:
                try:
                    await world.start_driver()
                    return await _run(world, seed, steps, tally)
                finally:
                    await world.close()


async def _run(world: World, seed: int, steps: int, tally: collections.Counter[str]) -> float:
    slowest = 0.0
    await _settle(world, seed, 0, [])
    click.echo(f"seed {seed}: kubelet {world.version}")
    for step in range(1, steps + 1):
        chosen = world.rng.sample(sorted(FAULTS), world.rng.randint(1, 3))
        _churn(world)
        for name in chosen:
            await FAULTS[name](world)
            tally[name] += 1
        _churn(world)
        seconds = await _settle(world, seed, step, chosen)
        slowest = max(slowest, seconds)
        click.echo(f"{step:4} {', '.join(chosen)}  {seconds:.2f} s")
    for pod in list(world.pods):
        world.end_pod(pod)
    await _settle(world, seed, steps + 1, ["all pods end"])
    return slowest


def _churn(world: World) -> None:
    """Let some pods start and others end."""
    for _ in range(world.rng.randint(0, 3)):
        if len(world.pods) < DEVICES * 3 // 4:
            world.schedule_pod()
    for _ in range(world.rng.randint(0, 2)):
        if world.pods:
            world.end_pod(world.rng.choice(sorted(world.pods)))


async def _settle(world: World, seed: int, step: int, chosen: list[str]) -> float:
    """Wait until the invariants hold; return the seconds. Raises FailedError."""
    started = time.monotonic()
    found = ["pods start or end"]
    try:
        async with asyncio.timeout(BOUND):
            await world.settle_pods()
            while found := violations(world):
                await asyncio.sleep(INTERVAL)
    except TimeoutError:
        log = (world.directory / "driver.log").read_text(errors="replace")[-4000:]
        raise FailedError(
            f"seed {seed}, step {step} ({', '.join(chosen)}): not within {BOUND:.0f} s: {'; '.join(found)}\n"
            f"{world.kubelet.describe()}\n{world.server.describe()}\n{log}"
        ) from None
    return time.monotonic() - started


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    chaos()
