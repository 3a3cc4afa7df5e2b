"""The kubelet's life."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from aosp_plugin.testing import Behaviour
from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World


@at_once("kubelet", weight=6)
async def kubelet_restarts(world: World, rng: random.Random) -> None:
    """The kubelet is killed and starts again at once: it removes all sockets, and remembers its pods."""
    if world.kubelet_runs:
        await world.restart_kubelet()


@at_once("kubelet")
async def kubelet_restarts_without_cleaning(world: World, rng: random.Random) -> None:
    """The kubelet is killed and starts again, and leaves the sockets of the plugins where they are."""
    if world.kubelet_runs:
        await world.restart_kubelet(keep_sockets=True)


@at_once("kubelet")
async def kubelet_restarts_thrice(world: World, rng: random.Random) -> None:
    """The kubelet is killed and starts again three times in a row, as one does that crashes."""
    for _ in range(3):
        await kubelet_restarts(world, rng)


@at_once("kubelet")
async def kubelet_of_another_version(world: World, rng: random.Random) -> None:
    """A kubelet of another version takes over, and knows nothing of what was before."""
    if world.kubelet_runs:
        await world.another_kubelet(rng.choice(list(Behaviour)))


@for_a_while("kubelet")
async def kubelet_is_killed(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet is killed: its socket stays, and nobody answers there."""
    await world.stop_kubelet()
    yield
    await world.start_kubelet()


@for_a_while("kubelet")
async def kubelet_is_stopped(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet is stopped in good order: its socket is gone."""
    await world.stop_kubelet()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(world.kubelet.socket_path)
    yield
    await world.start_kubelet()


@for_a_while("kubelet", weight=2)
async def kubelet_speaks_nonsense(world: World, rng: random.Random) -> AsyncIterator[None]:
    """Something that speaks no gRPC listens on kubelet.sock."""
    kubelet = world.kubelet
    kubelet.faults.garbage_register = True
    await world.restart_kubelet()
    yield
    kubelet.faults.garbage_register = False
    await world.restart_kubelet()


@for_a_while("kubelet")
async def kubelet_loses_its_socket(world: World, rng: random.Random) -> AsyncIterator[None]:
    """kubelet.sock is deleted under a kubelet that runs, until somebody restarts it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(world.kubelet.socket_path)
    yield
    await world.restart_kubelet()
