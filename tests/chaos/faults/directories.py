"""Faults of directories: replaced, temporarily missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.chaos.files import make_device, remove
from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World


@at_once("devices", weight=3)
def device_directory_is_replaced(world: World, rng: random.Random) -> None:
    """Another directory with some of the devices and some new ones replaces the device directory."""
    before, new = world.devices.directory + ".old", world.devices.directory + ".new"
    os.mkdir(new)
    names = [*world.devices.some(rng, 30), *world.devices.new_names(rng, 5)]
    for name in names:
        world.devices.ever.add(name)
        make_device(os.path.join(new, name), world.devices.device)
    os.rename(world.devices.directory, before)
    os.rename(new, world.devices.directory)
    remove(before)


@for_a_while("directories", weight=3, livable=True)
async def device_directory_is_missing(world: World, rng: random.Random) -> AsyncIterator[None]:
    """An empty directory replaces the device directory temporarily."""
    aside = world.devices.directory + ".aside"
    os.rename(world.devices.directory, aside)
    os.mkdir(world.devices.directory)
    yield
    remove(world.devices.directory)
    os.rename(aside, world.devices.directory)


@for_a_while("directories", alone=True)
async def kubelet_directory_is_missing(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet's directory is moved away while the kubelet runs, and back; then the kubelet restarts."""
    aside = world.plugins + ".aside"
    os.rename(world.plugins, aside)
    if rng.random() < 0.5:
        os.mkdir(world.plugins)
    yield
    remove(world.plugins)
    os.rename(aside, world.plugins)
    await world.restart_kubelet(keep_sockets=rng.random() < 0.5)


@for_a_while("directories", alone=True)
async def kubelet_directory_is_replaced(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet is killed and its directory deleted; the next kubelet creates it again."""
    await world.stop_kubelet()
    remove(world.plugins)
    yield
    await world.start_kubelet()


@for_a_while("directories", alone=True)
async def kubelet_directory_is_emptied(world: World, rng: random.Random) -> AsyncIterator[None]:
    """All files in the kubelet's directory are deleted while the kubelet runs, until it restarts."""
    for name in os.listdir(world.plugins):
        remove(os.path.join(world.plugins, name))
    yield
    await world.restart_kubelet()
