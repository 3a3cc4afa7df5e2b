"""Faults of file systems that do not answer."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from tests.chaos.files import remove
from tests.chaos.registry import at_once, for_a_while
from tests.chaos.remote import TARGETS

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World


@for_a_while("hangs", needs=("namespace", "fuse"), livable=True)
async def file_system_hangs(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The FUSE file system that some devices are on hangs; only those turn unhealthy."""
    world.remote.hang()
    yield
    world.remote.release()


@at_once("devices", needs=("namespace", "fuse"), weight=2)
async def file_system_hangs_for_a_moment(world: World, rng: random.Random) -> None:
    """The FUSE file system hangs for some tenths of a second, while devices appear."""
    world.remote.hang()
    for name in world.devices.new_names(rng, 3):
        world.devices.make(name)
    await asyncio.sleep(rng.uniform(0.01, 0.8))
    world.remote.release()


@for_a_while("hangs", needs=("namespace", "fuse"), weight=3)
async def file_system_of_another_type_hangs(world: World, rng: random.Random) -> AsyncIterator[None]:
    """An overlay that some devices are on hangs, which its type does not announce."""
    for name in world.devices.new_names(rng, TARGETS):
        world.devices.link(name, to=os.path.join(world.remote.overlay, str(rng.randrange(TARGETS))))
    await asyncio.sleep(rng.choice([0.0, 0.5]))
    world.remote.hang_overlay()
    yield
    world.remote.release()


@at_once("devices", needs=("namespace", "fuse"))
def remote_devices_appear(world: World, rng: random.Random) -> None:
    """Links to devices on the FUSE file system appear."""
    for name in world.devices.new_names(rng, 6):
        world.link_remote(name)


@at_once("devices", needs=("namespace", "fuse"), weight=2)
def remote_devices_change(world: World, rng: random.Random) -> None:
    """Devices on the FUSE file system are deleted, and deleted ones appear again, without a file event."""
    for name in sorted(world.remote.names):
        if not os.path.lexists(world.remote.source(name)):
            world.remote.target(name)
        elif rng.random() < 0.3:
            remove(world.remote.source(name))
