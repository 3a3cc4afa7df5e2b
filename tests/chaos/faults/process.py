"""Faults of the plugin's process and of its configuration."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World

INVALID = (
    "version: v1\nresource_name: invalid\n",
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
    """The plugin is killed (SIGKILL) and restarted."""
    await world.restart_plugin(signal.SIGKILL)


@at_once("process", weight=2)
async def plugin_is_terminated(world: World, rng: random.Random) -> None:
    """The plugin is terminated (SIGTERM) and restarted."""
    await world.restart_plugin(signal.SIGTERM)


@for_a_while("process", weight=6)
async def plugin_is_stopped(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The plugin is stopped (SIGSTOP) and continued later."""
    world.plugin.signal(signal.SIGSTOP)
    world.plugin.unresponsive = True
    yield
    world.plugin.signal(signal.SIGCONT)
    world.plugin.unresponsive = False


@at_once("process")
def configuration_is_reloaded(world: World, rng: random.Random) -> None:
    """SIGHUP with an unchanged configuration, once or several times in a row."""
    for _ in range(rng.choice([1, 1, 5])):
        world.reload()


@at_once("process", weight=6)
def configuration_changes(world: World, rng: random.Random) -> None:
    """SIGHUP with a changed configuration, which replaces all parts of the process."""
    world.configure(log_level=rng.choice(["info", "debug"]), log_format=rng.choice(["text", "json"]))
    world.reload()


@at_once("process")
async def configuration_is_invalid(world: World, rng: random.Random) -> None:
    """SIGHUP with an invalid configuration; the file is restored afterwards."""
    world.write_configuration(rng.choice(INVALID))
    world.reload()
    await asyncio.sleep(0.3)
    world.configure()
    world.reload()
