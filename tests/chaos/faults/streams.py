"""Faults of the connections between kubelet and plugin: Register, ListAndWatch, the plugin's socket."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World


@at_once("kubelet", weight=6)
async def streams_are_dropped(world: World, rng: random.Random) -> None:
    """The kubelet closes the ListAndWatch streams and does not open new ones."""
    if world.kubelet_runs:
        await world.kubelet.drop_streams()


@at_once("kubelet")
async def second_stream(world: World, rng: random.Random) -> None:
    """The kubelet opens a second ListAndWatch stream."""
    served = rng.choice(world.setup.served)
    connected = world.kubelet_runs and world.kubelet.resource(served.name).connected
    if connected and not world.plugin.unresponsive:
        await world.kubelet.open_second_stream(served.name)


@at_once("kubelet", weight=6)
def own_socket_is_deleted(world: World, rng: random.Random) -> None:
    """The plugin's sockets are deleted; existing connections stay open."""
    for name in world.sockets():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(world.plugins, name))


@at_once("kubelet")
def own_socket_is_replaced(world: World, rng: random.Random) -> None:
    """A file replaces the plugin's socket, and is deleted too."""
    for name in world.sockets():
        path = os.path.join(world.plugins, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with open(path, "wb"):
            pass
        os.unlink(path)


@for_a_while("kubelet")
async def register_is_slow(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet restarts and responds slowly to Register."""
    kubelet = world.kubelet
    kubelet.faults.slow_register = rng.uniform(0.2, 3.0)
    await world.restart_kubelet()
    yield
    kubelet.faults.slow_register = 0.0


@for_a_while("kubelet")
async def register_is_refused(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet restarts and refuses Register temporarily."""
    kubelet = world.kubelet
    kubelet.faults.refuse_register = "the kubelet is not ready yet"
    await world.restart_kubelet()
    yield
    kubelet.faults.refuse_register = None


@for_a_while("kubelet")
async def register_hangs(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet restarts and does not respond to Register temporarily."""
    kubelet = world.kubelet
    kubelet.faults.hang_register = True
    await world.restart_kubelet()
    yield
    kubelet.faults.release_register()


@for_a_while("kubelet", weight=1)
async def no_stream_is_opened(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet restarts, accepts the registration, and never calls ListAndWatch."""
    kubelet = world.kubelet
    kubelet.faults.never_open_stream = True
    await world.restart_kubelet()
    yield
    kubelet.faults.never_open_stream = False
