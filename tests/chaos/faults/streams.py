"""Faults of the connections between kubelet and plugin: Register, ListAndWatch, the plugin's socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub
    from tests.chaos.world import World


@at_once("kubelet", weight=6)
async def streams_are_dropped(world: World, rng: random.Random) -> None:
    """The kubelet closes the ListAndWatch streams and does not open new ones."""
    if world.kubelet_runs:
        await world.kubelet.drop_streams()


@for_a_while("kubelet", livable=True)
async def foreign_streams(world: World, rng: random.Random) -> AsyncIterator[None]:
    """Another client opens ListAndWatch streams, reads them or not, and ends them at some time."""
    async with contextlib.AsyncExitStack() as clients:
        for stub in [await clients.enter_async_context(_client(world, name)) for name in _registered(world)]:
            calls = [stub.ListAndWatch(pb.Empty()) for _ in range(rng.randint(1, 5))]
            for call in calls:
                if rng.random() < 0.5:
                    clients.callback(call.cancel)
                if rng.random() < 0.7:
                    clients.push_async_callback(_end, asyncio.create_task(_read(call)))
        yield


def _registered(world: World) -> list[str]:
    """Return the endpoint of each resource that is registered, unless the plugin cannot answer."""
    if world.plugin.unresponsive:
        return []
    return sorted({entry.resource_name: entry.endpoint for entry in world.kubelet.registrations}.values())


@contextlib.asynccontextmanager
async def _client(world: World, endpoint: str) -> AsyncIterator[DevicePluginAsyncStub]:
    """Connect to a plugin's socket as another client than the kubelet."""
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    address = f"unix:{os.path.join(world.plugins, endpoint)}"
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield DevicePluginStub(channel)


async def _read(call: grpc.aio.UnaryStreamCall[pb.Empty, pb.ListAndWatchResponse]) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@at_once("kubelet", weight=6)
def own_socket_is_deleted(world: World, rng: random.Random) -> None:
    """The plugin's sockets are deleted; existing connections stay open."""
    for name in world.sockets():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(world.plugins, name))


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
