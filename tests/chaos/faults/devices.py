"""Faults of binder devices: they appear, disappear and are replaced."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from tests.chaos.files import make_device
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


@at_once("devices", weight=2)
def all_devices_disappear(world: World, rng: random.Random) -> None:
    """All devices are deleted."""
    for name in world.devices.names():
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


@at_once("devices")
def device_becomes_a_pipe(world: World, rng: random.Random) -> None:
    """Pipes replace some devices."""
    for name in world.devices.some(rng, 2):
        world.devices.remove(name)
        os.mkfifo(world.devices.path(name))


@at_once("devices")
def device_becomes_a_directory(world: World, rng: random.Random) -> None:
    """Directories with a file replace some devices."""
    for name in world.devices.some(rng, 2):
        world.devices.remove(name)
        os.mkdir(world.devices.path(name))
        make_device(os.path.join(world.devices.path(name), name), world.devices.device)


@at_once("devices")
def device_becomes_a_socket(world: World, rng: random.Random) -> None:
    """A socket replaces a device."""
    for name in world.devices.some(rng, 1):
        world.devices.remove(name)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(world.devices.path(name))


@at_once("devices")
def device_becomes_a_file(world: World, rng: random.Random) -> None:
    """Regular files replace some devices."""
    for name in world.devices.some(rng, 2):
        world.devices.remove(name)
        with open(world.devices.path(name), "wb") as file:
            file.write(b"not a device")


@at_once("devices", weight=6)
def device_is_renamed(world: World, rng: random.Random) -> None:
    """Some devices are renamed."""
    free = iter(world.devices.new_names(rng, 5))
    for old, new in zip(world.devices.some(rng, 5), free, strict=False):
        os.rename(world.devices.path(old), world.devices.path(new))


@at_once("devices")
def devices_swap_names(world: World, rng: random.Random) -> None:
    """Two files swap their names."""
    names = world.devices.names()
    if len(names) > 1:
        left, right = map(world.devices.path, rng.sample(names, 2))
        aside = os.path.join(world.devices.directory, ".aside")
        os.rename(left, aside)
        os.rename(right, left)
        os.rename(aside, right)


@at_once("devices")
def device_moves_out_and_in(world: World, rng: random.Random) -> None:
    """Some devices are moved to another directory, and some of those back."""
    if os.path.ismount(world.devices.directory):
        return  # files cannot be renamed across file systems
    for name in world.devices.some(rng, 5):
        aside = os.path.join(world.root, "aside")
        os.rename(world.devices.path(name), aside)
        if rng.random() < 0.5 or (not os.path.islink(aside) and os.path.isdir(aside)):
            os.rename(aside, world.devices.path(name))
        else:
            os.unlink(aside)


@at_once("devices", weight=2)
def invalid_names(world: World, rng: random.Random) -> None:
    """Devices with invalid names appear: too long, with spaces, commas, newlines, or invalid UTF-8."""
    prefix = os.fsencode(rng.choice(world.devices.prefixes))
    for end in (b" 1", b"1,2", b"\n", b"\xff\xfe", b"9" * 80):
        path = os.path.join(os.fsencode(world.devices.directory), prefix + end)
        if not os.path.lexists(path):
            make_device(os.fsdecode(path), world.devices.device)


@at_once("devices", weight=2)
def unusual_names(world: World, rng: random.Random) -> None:
    """Devices with unusual names appear: the prefix alone, leading zeros, words, or a very large number."""
    prefix = rng.choice(world.devices.prefixes)
    for end in ("", "007", "x", "-a.b_c", "99999999999"):
        world.devices.make(prefix + end)


@at_once("devices", weight=2)
def unrelated_changes(world: World, rng: random.Random) -> None:
    """Unrelated files appear and disappear, and devices change their modes."""
    for number in range(rng.randint(1, 500)):
        path = os.path.join(world.devices.directory, f"unrelated{number}")
        with open(path, "wb"):
            pass
        os.unlink(path)
    for name in world.devices.some(rng, 5):
        path = world.devices.path(name)
        if not os.path.islink(path):
            os.chmod(path, rng.choice([0o600, 0o666]))
