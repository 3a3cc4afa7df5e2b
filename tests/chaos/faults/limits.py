"""Exhausted resources: inotify instances, watches and queue, file descriptors, disk space, inodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from typing import TYPE_CHECKING

import psutil

from tests.chaos import place
from tests.chaos.monitor import get, succeeds
from tests.chaos.registry import ViolationError, at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Iterator

    from tests.chaos.world import World


SPINNING = 0.7
"""The share of a CPU that a process may use while it lacks file descriptors: it retries, and the kubelet restarts."""


@for_a_while("limits", mounts=True, livable=True, excuses=("files_are_watched",))
async def no_inotify_instance(world: World, rng: random.Random) -> AsyncIterator[None]:
    """No inotify instance is available (fs.inotify.max_user_instances) when the plugin restarts."""
    with place.inotify_limited("instances", 0):
        await world.restart_plugin(signal.SIGKILL)
        await asyncio.sleep(1)
        yield
    world.plugin.baseline = None  # each subscription has an inotify instance of its own


@for_a_while("limits", mounts=True, livable=True, excuses=("files_are_watched",))
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


@for_a_while("limits", alone=True)
async def no_descriptor(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The plugin runs out of file descriptors; the kubelet restarts, the configuration is reloaded, clients wait."""
    process = psutil.Process(world.plugin.pid)
    _, hard = before = process.rlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir(f"/proc/{process.pid}/fd")))
    free = [number for number in range(len(used) + 4) if number not in used]
    process.rlimit(resource.RLIMIT_NOFILE, (free[rng.choice([0, 0, 1, 3])], hard))
    world.plugin.unresponsive = True
    choice = rng.random()
    if choice < 0.4:
        await world.restart_kubelet()
    elif choice < 0.7:
        world.reload()
    requests = [asyncio.create_task(get(world.port, "/healthz")) for _ in range(rng.choice([0, 1, 20]))]
    await asyncio.sleep(0.1)
    if (share := await world.plugin.processor_share(0.5)) > SPINNING:
        raise ViolationError(f"without descriptors, the process uses {share:.0%} of a CPU")
    yield
    process.rlimit(resource.RLIMIT_NOFILE, before)
    if failed := [answer for answer in await asyncio.gather(*requests) if not succeeds(answer)]:
        raise ViolationError(f"{len(failed)} requests that waited for descriptors failed: {failed[0][-200:]}")
    world.plugin.unresponsive = False


@for_a_while("limits", alone=True, mounts=True)
async def no_space_for_sockets(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The file system of the kubelet's directory is full, or out of inodes; the streams are closed."""
    with filled(os.path.dirname(world.plugins), inodes=rng.random() < 0.5):
        await world.kubelet.drop_streams()
        yield


@for_a_while("limits", mounts=True, livable=True, excuses=("process_is_ready", "cdi_spec_is_current"))
async def no_space_for_specs(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The file system of the CDI directory is full, or out of inodes; the kubelet still gets every change."""
    with filled(world.cdi_mount, inodes=rng.random() < 0.5):
        world.model.named_in_spec = world.named_in_spec if world.setup.by_cdi else None
        yield
    world.model.named_in_spec = None


@contextlib.contextmanager
def filled(directory: str, *, inodes: bool) -> Iterator[None]:
    """Fill the file system of a directory while the context lasts, with ``inodes`` its inodes too."""
    files = [os.path.join(directory, "filler")]
    try:
        with contextlib.suppress(OSError), open(files[0], "wb", buffering=0) as file:
            while file.write(bytes(65536)):
                pass
        with contextlib.suppress(OSError):
            while inodes:
                path = os.path.join(directory, f"filler{len(files)}")
                with open(path, "xb"):
                    files.append(path)
        yield
    finally:
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
