"""Faults of the plugin's process and of its configuration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from tests.chaos.faults import limits
from tests.chaos.registry import ViolationError, at_once, for_a_while

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
    "version: v1\nverify: char\nverify: char\n",
)

REJECTED = 25.0
"""Seconds within which a reload must be rejected. A device scan may hang for 10 s of them."""


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


@at_once("process", weight=6)
async def configuration_cannot_be_served(world: World, rng: random.Random) -> None:
    """SIGHUP with a configuration that is invalid or cannot be served; the file is restored afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.ExitStack() as stack:
        unserved: list[dict[str, Any]] = [
            {"listen": f"127.0.0.1:{taken.getsockname()[1]}"},
            {"status_listen": f"127.0.0.1:{taken.getsockname()[1]}"},
            {"listen": "192.0.2.1:9478"},
            {"device_dir": os.path.join(world.root, "config.yaml")},
            {"device_dir": "/nowhere"},
            {"kubelet_dir": "/nowhere"},
            {"device_prefix": "nothing_has_this_prefix", "require_devices": True},
        ]
        if world.setup.by_cdi:
            stack.enter_context(limits.filled(world.cdi_mount, inodes=True))
            unserved.append({"cdi_dir": os.path.join(world.cdi_mount, "other")})
        texts = [*INVALID, *(world.configuration(**keys) for keys in unserved)]
        for text in rng.sample(texts, rng.randint(1, 3)):
            world.write_configuration(text)
            await _rejected(world, text)
    world.configure()
    world.reload()


async def _rejected(world: World, text: str) -> None:
    """Reload a configuration, and wait until it is rejected. Raises ViolationError."""
    message = "configuration reload rejected"
    before = world.plugin.logged(message)
    if not world.reload() or world.plugin.unresponsive:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REJECTED):
            while world.plugin.logged(message) == before and world.plugin.ended is None:
                await asyncio.sleep(0.02)
            if world.plugin.ended is None:
                return
    raise ViolationError(f"this configuration was not rejected: {text[:1000]}")
