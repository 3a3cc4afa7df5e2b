"""Faults of the plugin's process and of its configuration."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World


@at_once("process", weight=3)
async def plugin_is_killed(world: World, rng: random.Random) -> None:
    """The plugin is killed (SIGKILL) and restarted."""
    await world.restart_plugin(signal.SIGKILL)


@at_once("process", weight=2)
async def plugin_is_terminated(world: World, rng: random.Random) -> None:
    """The plugin is terminated (SIGTERM) and restarted."""
    await world.restart_plugin(signal.SIGTERM)


@for_a_while("process", weight=6)
async def plugin_is_stopped(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The plugin is stopped (SIGSTOP) and continued later."""
    world.plugin.stop()
    yield
    world.plugin.resume()


@for_a_while("process", livable=True)
async def log_is_not_read(world: World, rng: random.Random) -> AsyncIterator[None]:
    """Nobody reads the plugin's log, and its pipe is full."""
    world.plugin.stall_log()
    world.reload()
    yield
    world.plugin.reads_log.set()


@at_once("process")
def configuration_is_reloaded(world: World, rng: random.Random) -> None:
    """SIGHUP with an unchanged configuration, once or several times in a row."""
    for _ in range(rng.choice([1, 1, 5])):
        world.reload()


@at_once("process", weight=6)
def configuration_changes(world: World, rng: random.Random) -> None:
    """SIGHUP with a changed configuration, for which the process executes its program again."""
    world.configure(log_level=rng.choice(["info", "debug"]), log_format=rng.choice(["text", "json"]))
    world.reload()
