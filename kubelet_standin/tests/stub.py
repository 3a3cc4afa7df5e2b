"""A stub plugin for the tests of the stand-in kubelet, and functions to register it."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import pytest

from kubelet_standin import Kubelet, KubeletVersion
from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.api import deviceplugin_pb2_grpc as rpc
from kubelet_standin.sockets import socket_address

R = "example.com/thing"
OTHER = "example.com/other"
PATIENCE = 30.0
"""Seconds after which a test gives up waiting. Far more than any step needs, even on a busy machine."""
PREFERS = pb.DevicePluginOptions(get_preferred_allocation_available=True)
PRE_STARTS = pb.DevicePluginOptions(pre_start_required=True)

buggy_kubelet = pytest.mark.parametrize("kubelet_version", [KubeletVersion.V1_36])


class Clock:
    """A clock that only a test moves, in seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the current time."""
        return self.now


def healthy(*ids: str) -> list[pb.Device]:
    """Return healthy devices."""
    return [pb.Device(ID=name, health="Healthy") for name in ids]


def fail(text: str, code: grpc.StatusCode = grpc.StatusCode.INTERNAL) -> Callable[[Any], Awaitable[None]]:
    """Return a hook that fails the call."""

    async def hook(context: Any) -> None:
        await context.abort(code, text)

    return hook


def hold(event: asyncio.Event) -> Callable[[Any], Awaitable[None]]:
    """Return a hook that delays the call until ``event`` is set."""

    async def hook(_context: Any) -> None:
        await event.wait()

    return hook


class StubPlugin(rpc.DevicePluginServicer):
    """A plugin that records its calls. A test can set a hook for the start of each method, and its responses."""

    def __init__(
        self,
        directory: str,
        *ids: str,
        name: str,
        resource: str = R,
        options: pb.DevicePluginOptions | None = None,
    ) -> None:
        self.name = name
        self.resource = self.variable = resource
        self.options = options or pb.DevicePluginOptions()
        self.devices = healthy(*ids)
        self.streams: list[asyncio.Queue[pb.ListAndWatchResponse | None]] = []
        self.hooks: dict[str, Callable[[Any], Awaitable[None]]] = {}
        self.called: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.allocated: list[list[str]] = []
        self.response: pb.AllocateResponse | None = None
        """The response of Allocate; None: the IDs in an environment variable."""
        self.preference_requests: list[pb.ContainerPreferredAllocationRequest] = []
        self.preferred: list[str] | None = []
        self.pre_started: list[list[str]] = []
        self.pre_start_seconds = 0.0
        self.server = grpc.aio.server()
        self._address = socket_address(f"{directory}/{name}")

    async def serve(self) -> None:
        """Start serving."""
        rpc.add_DevicePluginServicer_to_server(self, self.server)
        self.server.add_insecure_port(self._address)
        await self.server.start()

    async def _start(self, method: str, context: Any) -> None:
        self.called[method].set()
        if method in self.hooks:
            await self.hooks[method](context)

    async def GetDevicePluginOptions(self, _request: pb.Empty, context: Any) -> pb.DevicePluginOptions:  # noqa: N802
        """Return the options of the registration."""
        await self._start("GetDevicePluginOptions", context)
        return self.options

    async def ListAndWatch(self, _request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: N802
        """Send the devices, and then each list that ``send`` queues."""
        queue: asyncio.Queue[pb.ListAndWatchResponse | None] = asyncio.Queue()
        self.streams.append(queue)
        await self._start("ListAndWatch", context)
        yield pb.ListAndWatchResponse(devices=self.devices)
        while (message := await queue.get()) is not None:
            yield message

    def send(self, devices: Sequence[pb.Device]) -> None:
        """Send a device list on the last stream."""
        self.devices = list(devices)
        self.streams[-1].put_nowait(pb.ListAndWatchResponse(devices=devices))

    def end_stream(self) -> None:
        """Return from the last stream."""
        self.streams[-1].put_nowait(None)

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802
        """Return ``response``."""
        (container,) = request.container_requests
        self.allocated.append(list(container.devices_ids))
        await self._start("Allocate", context)
        if self.response is not None:
            return self.response
        response = pb.ContainerAllocateResponse(envs={self.variable: ",".join(container.devices_ids)})
        return pb.AllocateResponse(container_responses=[response])

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        """Return the preferred IDs."""
        (container,) = request.container_requests
        self.preference_requests.append(container)
        await self._start("GetPreferredAllocation", context)
        if self.preferred is None:
            return pb.PreferredAllocationResponse()
        response = pb.ContainerPreferredAllocationResponse(deviceIDs=self.preferred)
        return pb.PreferredAllocationResponse(container_responses=[response])

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        """Record the IDs and the caller's deadline."""
        self.pre_started.append(list(request.devices_ids))
        self.pre_start_seconds = context.time_remaining()
        await self._start("PreStartContainer", context)
        return pb.PreStartContainerResponse()


class Plugins:
    """Starts the stub plugins of a test, and stops them at its end."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._running: list[StubPlugin] = []

    async def start(self, *ids: str, name: str = "", **arguments: Any) -> StubPlugin:
        """Start a plugin without registering it. Its socket name is its number by default."""
        plugin = StubPlugin(self._directory, *ids, name=name or f"{len(self._running)}.sock", **arguments)
        self._running.append(plugin)
        await plugin.serve()
        return plugin

    async def serve(self, kubelet: Kubelet, *ids: str, **arguments: Any) -> StubPlugin:
        """Start and register a plugin, and wait until the kubelet has received its devices."""
        plugin = await self.start(*ids, **arguments)
        messages = kubelet.resource(plugin.resource).messages
        await register(kubelet, plugin.name, resource=plugin.resource, options=plugin.options)
        await kubelet.wait_for(lambda k: k.resource(plugin.resource).messages > messages)
        return plugin

    async def stop(self) -> None:
        """Stop all plugins."""
        running, self._running = self._running, []
        for plugin in running:
            await plugin.server.stop(None)


async def register(
    kubelet: Kubelet,
    endpoint: str,
    *,
    resource: str = R,
    version: str = "v1beta1",
    timeout: float = 20,
    options: pb.DevicePluginOptions | None = None,
) -> None:
    """Call Register."""
    request = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource, options=options)
    local = [("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(socket_address(kubelet.socket_path), options=local) as channel:
        await rpc.RegistrationStub(channel).Register(request, timeout=timeout)


async def register_error(kubelet: Kubelet, endpoint: str, **arguments: Any) -> tuple[grpc.StatusCode, str]:
    """Call Register, which must fail; return the code and the text."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await register(kubelet, endpoint, **arguments)
    return error.value.code(), error.value.details() or ""
