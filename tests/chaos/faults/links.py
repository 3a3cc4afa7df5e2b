"""Faults of devices that are links, and of the links' targets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.chaos.files import make_device, remove
from tests.chaos.registry import at_once

if TYPE_CHECKING:
    import random

    from tests.chaos.world import World


@at_once("devices")
def links_appear(world: World, rng: random.Random) -> None:
    """Links to devices in a second directory appear."""
    for name in world.devices.new_names(rng, 8):
        world.devices.link(name)


@at_once("devices")
def device_becomes_a_link(world: World, rng: random.Random) -> None:
    """Links to devices in a second directory replace some devices."""
    for name in world.devices.some(rng, 5):
        world.devices.link(name)


@at_once("devices")
def device_becomes_a_link_to_nothing(world: World, rng: random.Random) -> None:
    """Dangling links replace some devices."""
    for name in world.devices.some(rng, 3):
        world.devices.link(name, to=os.path.join(rng.choice([world.devices.targets, "/nowhere/at/all"]), "nothing"))


@at_once("devices", weight=2)
def device_becomes_a_loop(world: World, rng: random.Random) -> None:
    """Links to themselves replace some devices."""
    for name in world.devices.some(rng, 2):
        world.devices.link(name, to=name)


@at_once("devices", weight=2)
def device_becomes_a_link_to_a_directory(world: World, rng: random.Random) -> None:
    """Links to a directory replace some devices."""
    for name in world.devices.some(rng, 2):
        world.devices.link(name, to="/tmp")


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


@at_once("devices")
def targets_are_replaced(world: World, rng: random.Random) -> None:
    """Pipes and directories replace some link targets."""
    names = sorted(os.listdir(world.devices.targets))
    for name in rng.sample(names, min(3, len(names))):
        remove(world.devices.target(name))
        rng.choice([os.mkdir, os.mkfifo])(world.devices.target(name))


@at_once("devices")
def links_are_redirected(world: World, rng: random.Random) -> None:
    """Links to other devices, or dangling ones, replace links atomically (rename)."""
    for name in world.devices.some(rng, 4):
        path = world.devices.path(name)
        if os.path.islink(path):
            aside = os.path.join(world.devices.directory, ".aside")
            os.symlink(world.devices.target(rng.choice([name, name + "0"])), aside)
            os.rename(aside, path)


@at_once("devices", weight=3)
def links_through_links(world: World, rng: random.Random) -> None:
    """Links point to a device through a link in a third directory."""
    for name in world.devices.some(rng, 3):
        world.devices.link(name)
        intermediate = os.path.join(world.root, "intermediate")
        os.makedirs(intermediate, exist_ok=True)
        remove(os.path.join(intermediate, name))
        os.symlink(world.devices.target(name), os.path.join(intermediate, name))
        world.devices.link(name, to=os.path.join(intermediate, name))


@at_once("devices", weight=3)
def intermediate_links_change(world: World, rng: random.Random) -> None:
    """The links in the third directory are redirected, dangling or deleted."""
    intermediate = os.path.join(world.root, "intermediate")
    for name in sorted(os.listdir(intermediate)) if os.path.isdir(intermediate) else ():
        remove(os.path.join(intermediate, name))
        to = rng.choice([world.devices.target(name), world.devices.target("nothing"), None])
        if to is not None:
            os.symlink(to, os.path.join(intermediate, name))
