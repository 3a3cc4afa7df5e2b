"""Faults of the kubelet."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kubelet_standin import KubeletVersion
from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World


@at_once("kubelet", weight=6)
async def kubelet_restarts(world: World, rng: random.Random) -> None:
    """The kubelet is killed and restarts at once; it removes all sockets and keeps its pods."""
    if world.kubelet_runs:
        await world.restart_kubelet()


@at_once("kubelet")
async def kubelet_restarts_without_cleaning(world: World, rng: random.Random) -> None:
    """The kubelet is killed and restarts without removing the sockets of plugins."""
    if world.kubelet_runs:
        await world.restart_kubelet(keep_sockets=True)


@at_once("kubelet")
async def kubelet_of_another_version(world: World, rng: random.Random) -> None:
    """A kubelet of another version replaces the kubelet, without its state."""
    if world.kubelet_runs:
        await world.replace_kubelet(rng.choice(list(KubeletVersion)))


@for_a_while("kubelet")
async def kubelet_is_killed(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet is killed; its socket stays without a listener."""
    await world.stop_kubelet()
    yield
    await world.start_kubelet()


@for_a_while("kubelet")
async def kubelet_is_stopped(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet stops gracefully and removes its socket."""
    await world.stop_kubelet()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(world.kubelet.socket_path)
    yield
    await world.start_kubelet()


@for_a_while("kubelet", weight=2)
async def kubelet_sends_garbage(world: World, rng: random.Random) -> AsyncIterator[None]:
    """A process that does not speak gRPC listens on kubelet.sock."""
    kubelet = world.kubelet
    kubelet.faults.garbage_register = True
    await world.restart_kubelet()
    yield
    kubelet.faults.garbage_register = False
    await world.restart_kubelet()


@for_a_while("kubelet")
async def kubelet_loses_its_socket(world: World, rng: random.Random) -> AsyncIterator[None]:
    """kubelet.sock is deleted while the kubelet runs, until it restarts."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(world.kubelet.socket_path)
    yield
    await world.restart_kubelet()
