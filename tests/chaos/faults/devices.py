"""Faults of binder devices: they appear, disappear and are replaced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.chaos.files import make_device, remove
from tests.chaos.registry import at_once

if TYPE_CHECKING:
    import random

    from tests.chaos.world import World


@at_once("devices", weight=6)
def devices_appear(world: World, rng: random.Random) -> None:
    """Some devices are created."""
    for name in world.devices.new_names(rng, 20):
        world.devices.make(name)


@at_once("devices", weight=6)
def devices_disappear(world: World, rng: random.Random) -> None:
    """Some devices are deleted."""
    for name in world.devices.some(rng, 20):
        world.devices.remove(name)


@at_once("devices")
def devices_are_recreated(world: World, rng: random.Random) -> None:
    """Some devices are deleted and created again at once."""
    for name in world.devices.some(rng, 20):
        world.devices.make(name)


@at_once("devices")
def device_flaps(world: World, rng: random.Random) -> None:
    """A device is created and deleted some hundred times, and may exist at the end."""
    (name,) = world.devices.new_names(rng, 1)
    for _ in range(rng.randint(100, 300)):
        world.devices.make(name)
        world.devices.remove(name)
    if rng.random() < 0.5:
        world.devices.make(name)


@at_once("devices", weight=2)
def many_devices_appear(world: World, rng: random.Random) -> None:
    """Hundreds or thousands of devices are created as fast as possible."""
    prefix = rng.choice(world.devices.prefixes)
    for number in range(1000, 1000 + rng.choice([300, 1000, 2000])):
        world.devices.make(f"{prefix}{number}")


@at_once("devices", weight=3)
def many_devices_disappear(world: World, rng: random.Random) -> None:
    """All but some devices are deleted as fast as possible."""
    for name in world.devices.names()[rng.randint(5, 40) :]:
        world.devices.remove(name)


@at_once("devices", weight=6)
def device_is_renamed(world: World, rng: random.Random) -> None:
    """Some devices are renamed."""
    free = iter(world.devices.new_names(rng, 5))
    for old, new in zip(world.devices.some(rng, 5), free, strict=False):
        os.rename(world.devices.path(old), world.devices.path(new))


@at_once("devices")
def device_moves_out_and_in(world: World, rng: random.Random) -> None:
    """Some devices are moved to another directory, and some of those back."""
    for name in world.devices.some(rng, 5):
        aside = os.path.join(world.root, "aside")
        os.rename(world.devices.path(name), aside)
        if rng.random() < 0.5:
            os.rename(aside, world.devices.path(name))
        else:
            os.unlink(aside)


@at_once("devices")
def links_appear(world: World, rng: random.Random) -> None:
    """Links to devices in a second directory appear."""
    for name in world.devices.new_names(rng, 8):
        world.devices.link(name)


@at_once("devices", weight=6)
def targets_disappear(world: World, rng: random.Random) -> None:
    """Some link targets are deleted."""
    names = sorted(os.listdir(world.devices.targets))
    for name in rng.sample(names, min(6, len(names))):
        remove(world.devices.target(name))


@at_once("devices", weight=6)
def targets_appear(world: World, rng: random.Random) -> None:
    """All missing link targets in the second directory are created."""
    for name in world.devices.names():
        if os.path.islink(world.devices.path(name)) and not os.path.lexists(world.devices.target(name)):
            make_device(world.devices.target(name), world.devices.device)
