"""A device plugin that does what a scenario says, right or wrong, and writes down what it is asked."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Self

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import deviceplugin_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    Devices = Iterable[tuple[str, str]]
    """ID and health of each."""

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"
_LIST, _END = "list", "end"
_REGISTER = 20.0
"""Seconds; the kubelet dials for 10."""


def healthy(*ids: str) -> Devices:
    """Return devices that can be handed out."""
    return [(device, HEALTHY) for device in ids]


class Probe(rpc.DevicePluginServicer):
    """A plugin of one resource. An async context manager: it serves inside, and registers when it is told."""

    def __init__(self, directory: str, resource: str, devices: Devices = (), *, socket: str = "") -> None:
        """Prepare; what it answers can be changed by its attributes."""
        self.resource = resource
        self.socket = socket or f"probe-{resource.replace('/', '-')}.sock"
        self.options = pb.DevicePluginOptions()
        self.options_error = self.allocate_error = ""
        self.empty_answer = False
        self.prefer: list[str] = []
        self.calls: list[str] = []
        """Names of the RPCs in their order, and ``registered`` where Register was answered."""
        self.asked: list[list[str]] = []
        """Device IDs of each Allocate."""
        self.preferred: list[pb.ContainerPreferredAllocationRequest] = []
        self.streams = 0
        """ListAndWatch streams that are open."""
        self._directory = directory
        self._devices = list(devices)
        self._queues: list[asyncio.Queue[str]] = []
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        """Serve."""
        self._server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{os.path.join(self._directory, self.socket)}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving."""
        await self.stop()

    async def stop(self) -> None:
        """Stop serving, as a process that ends. May be repeated."""
        if self._server is not None:
            await self._server.stop(None)

    async def register(self, *, version: str = "v1beta1") -> str:
        """Register; return "" or the kubelet's error."""
        channel = grpc.aio.insecure_channel(
            f"unix:{self._directory}/kubelet.sock", options=[("grpc.default_authority", "localhost")]
        )
        request = pb.RegisterRequest(
            version=version, endpoint=self.socket, resource_name=self.resource, options=self.options
        )
        async with channel:
            try:
                await rpc.RegistrationStub(channel).Register(request, timeout=_REGISTER, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
        self.calls.append("registered")
        return ""

    def send(self, devices: Devices) -> None:
        """Have another list, and tell it to everyone who listens."""
        self._devices = list(devices)
        for queue in self._queues:
            queue.put_nowait(_LIST)

    def end_streams(self) -> None:
        """Return from ListAndWatch."""
        for queue in self._queues:
            queue.put_nowait(_END)

    async def GetDevicePluginOptions(  # noqa: N802 - the RPC's name
        self, _request: pb.Empty, context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions]
    ) -> pb.DevicePluginOptions:
        """Answer with the options, or the error."""
        self.calls.append("GetDevicePluginOptions")
        if self.options_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.options_error)
        return self.options

    async def ListAndWatch(  # noqa: N802 - the RPC's name
        self, _request: pb.Empty, _context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse]
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Tell the devices, and again whenever there are others."""
        self.calls.append("ListAndWatch")
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._queues.append(queue)
        self.streams += 1
        try:
            while True:
                yield pb.ListAndWatchResponse(devices=[pb.Device(ID=name, health=how) for name, how in self._devices])
                if await queue.get() == _END:
                    return
        finally:
            self.streams -= 1
            self._queues.remove(queue)

    async def Allocate(  # noqa: N802 - the RPC's name
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse]
    ) -> pb.AllocateResponse:
        """Answer with a variable that names the devices, with nothing, or with the error."""
        self.calls.append("Allocate")
        ids = [list(one.devices_ids) for one in request.container_requests]
        self.asked += ids
        if self.allocate_error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.allocate_error)
        if self.empty_answer:
            return pb.AllocateResponse()
        answers = [pb.ContainerAllocateResponse(envs={"GIVEN": ",".join(sorted(one))}) for one in ids]
        return pb.AllocateResponse(container_responses=answers)

    async def GetPreferredAllocation(  # noqa: N802 - the RPC's name
        self,
        request: pb.PreferredAllocationRequest,
        _context: grpc.aio.ServicerContext[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse],
    ) -> pb.PreferredAllocationResponse:
        """Answer with what the scenario prefers."""
        self.calls.append("GetPreferredAllocation")
        self.preferred += request.container_requests
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self.prefer)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def PreStartContainer(  # noqa: N802 - the RPC's name
        self,
        request: pb.PreStartContainerRequest,
        _context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        """Write down the devices."""
        self.calls.append(f"PreStartContainer {','.join(sorted(request.devices_ids))}")
        return pb.PreStartContainerResponse()
