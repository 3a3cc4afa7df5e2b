"""Exhausted resources of inotify: instances, watches and the queue of events."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from tests.chaos import place
from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World


@for_a_while("limits", namespaces=True, livable=True, excuses=("files_are_watched",))
async def no_inotify_instance(world: World, rng: random.Random) -> AsyncIterator[None]:
    """No inotify instance is available (fs.inotify.max_user_instances) when the plugin restarts."""
    with place.inotify_limited("instances", 0):
        await world.restart_plugin(signal.SIGKILL)
        await asyncio.sleep(1)
        yield
    world.plugin.baseline = None  # the plugin that restarts has no inotify instance at first


@for_a_while("limits", namespaces=True, livable=True, excuses=("files_are_watched",))
async def no_inotify_watch(world: World, rng: random.Random) -> AsyncIterator[None]:
    """No inotify watch is available (fs.inotify.max_user_watches), and the device directory is replaced."""
    with place.inotify_limited("watches", 0):
        aside = world.devices.directory + ".other"
        os.rename(world.devices.directory, aside)
        os.mkdir(world.devices.directory)
        for name in os.listdir(aside):
            os.rename(os.path.join(aside, name), os.path.join(world.devices.directory, name))
        os.rmdir(aside)
        yield


@at_once("limits", weight=2)
async def events_are_lost(world: World, rng: random.Random) -> None:
    """The inotify queue overflows while the plugin is stopped (fs.inotify.max_queued_events)."""
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as file:
        queue = min(int(file.read()), 100_000)
    world.plugin.stop()
    noise = os.path.join(world.devices.directory, "noise")
    for _ in range(queue // 2 + 10):
        with open(noise, "wb"):
            pass
        os.unlink(noise)
    for name in world.devices.some(rng, 5):  # without events, because the queue is full
        world.devices.remove(name)
    for name in world.devices.new_names(rng, 5):
        world.devices.make(name)
    world.plugin.resume()
