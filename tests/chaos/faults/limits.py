"""What runs out: inotify's instances, watches and queue, descriptors, space, inodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from typing import TYPE_CHECKING

import psutil

from tests.chaos import place
from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Iterator

    from tests.chaos.world import World


@for_a_while("limits", needs=("namespace",), livable=True)
async def no_inotify_instance(world: World, rng: random.Random) -> AsyncIterator[None]:
    """No inotify instance is to be had (fs.inotify.max_user_instances) when the plugin starts again."""
    with place.inotify_limited("instances", 0):
        await world.start_plugin_again(signal.SIGKILL)
        await asyncio.sleep(1)
        yield


@for_a_while("limits", needs=("namespace",), livable=True)
async def no_inotify_watch(world: World, rng: random.Random) -> AsyncIterator[None]:
    """No inotify watch is to be had (fs.inotify.max_user_watches), and the device directory is another one."""
    with place.inotify_limited("watches", 0):
        if not os.path.ismount(world.nodes.directory):
            aside = world.nodes.directory + ".other"
            os.rename(world.nodes.directory, aside)
            os.mkdir(world.nodes.directory)
            for name in os.listdir(aside):
                os.rename(os.path.join(aside, name), os.path.join(world.nodes.directory, name))
            os.rmdir(aside)
        yield


@at_once("limits", weight=2)
async def events_are_lost(world: World, rng: random.Random) -> None:
    """More happens while the plugin stands still than inotify's queue holds (fs.inotify.max_queued_events)."""
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as file:
        queue = min(int(file.read()), 100_000)
    world.plugin.signal(signal.SIGSTOP)
    name = os.path.join(world.nodes.directory, "noise")
    for _ in range(queue // 2 + 10):
        with open(name, "wb"):
            pass
        os.unlink(name)
    for node in world.nodes.some(rng, 5):  # which no event tells of any more
        world.nodes.remove(node)
    for node in world.nodes.new_names(rng, 5):
        world.nodes.make(node)
    world.plugin.signal(signal.SIGCONT)


@for_a_while("limits", alone=True)
async def no_descriptor(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The plugin has as many descriptors as it may, or a few less; then the kubelet restarts, or SIGHUP comes."""
    process = psutil.Process(world.plugin.pid)
    _, hard = before = process.rlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir(f"/proc/{process.pid}/fd")))
    free = [number for number in range(len(taken) + 4) if number not in taken]
    process.rlimit(resource.RLIMIT_NOFILE, (free[rng.choice([0, 0, 1, 3])], hard))
    world.plugin.deaf = True
    choice = rng.random()
    if choice < 0.4:
        await world.restart_kubelet()
    elif choice < 0.7:
        world.reload()
    yield
    process.rlimit(resource.RLIMIT_NOFILE, before)
    world.plugin.deaf = False


@for_a_while("limits", alone=True, needs=("namespace",))
async def no_space_for_sockets(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The file system of the kubelet's directory has no space, and perhaps no inode, left; the streams are dropped."""
    with _filled(os.path.dirname(world.plugins), inodes=rng.random() < 0.5):
        await world.kubelet.drop_streams()
        yield


@for_a_while("limits", alone=True, needs=("namespace",))
async def no_space_for_specs(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The file system of the CDI directory has no space, and perhaps no inode, left."""
    with _filled(os.path.dirname(world.cdi), inodes=rng.random() < 0.5):
        yield


@contextlib.contextmanager
def _filled(directory: str, *, inodes: bool) -> Iterator[None]:
    """Have no blocks left on the file system of a directory while the context lasts, nor ``inodes``."""
    made = [os.path.join(directory, "filler")]
    try:
        with contextlib.suppress(OSError), open(made[0], "wb", buffering=0) as file:
            while file.write(bytes(65536)):
                pass
        with contextlib.suppress(OSError):
            while inodes:
                path = os.path.join(directory, f"filler{len(made)}")
                with open(path, "xb"):
                    made.append(path)
        yield
    finally:
        for path in made:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
