"""Signals to the plugin, and its configuration."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World

NONSENSE = (
    "version: v1\nresource_name: nonsense\n",
    "version: v1\nno_such_key: 1\n",
    "version: v9\n",
    "{{{",
    "",
    "\x00",
    "version: v1\nkubelet_dir: /nowhere\n",
    "version: v1\ndevice_dir: /nowhere\n",
)


@at_once("process", weight=3)
async def plugin_is_killed(world: World, rng: random.Random) -> None:
    """The plugin is killed (SIGKILL) and started again."""
    await world.start_plugin_again(signal.SIGKILL)


@at_once("process", weight=2)
async def plugin_is_ended(world: World, rng: random.Random) -> None:
    """The plugin is ended in good order (SIGTERM) and started again."""
    await world.start_plugin_again(signal.SIGTERM)


@for_a_while("process", weight=6)
async def plugin_is_stopped(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The plugin stands still (SIGSTOP) and goes on later."""
    world.plugin.signal(signal.SIGSTOP)
    world.plugin.deaf = True
    yield
    world.plugin.signal(signal.SIGCONT)
    world.plugin.deaf = False


@at_once("process")
def configuration_is_read_again(world: World, rng: random.Random) -> None:
    """SIGHUP with a configuration that reads as before, once or some times in a row."""
    for _ in range(rng.choice([1, 1, 5])):
        world.reload()


@at_once("process", weight=6)
def configuration_is_another(world: World, rng: random.Random) -> None:
    """SIGHUP with another configuration, so that everything in the process is made anew."""
    world.configure(log_level=rng.choice(["info", "debug"]), log_format=rng.choice(["text", "json"]))
    world.reload()


@at_once("process")
async def configuration_is_nonsense(world: World, rng: random.Random) -> None:
    """SIGHUP with a configuration that is refused; the file is whole again before the next one."""
    world.write_configuration(rng.choice(NONSENSE))
    world.reload()
    await asyncio.sleep(0.3)
    world.configure()
    world.reload()
