"""A device plugin with the behaviour that a scenario sets, right or wrong, which records its calls."""

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
    """Return healthy devices."""
    return [(device, HEALTHY) for device in ids]


class Probe(rpc.DevicePluginServicer):
    """A plugin for one resource. As an async context manager it serves; :meth:`register` registers it."""

    def __init__(self, directory: str, resource: str, devices: Devices = (), *, socket: str = "") -> None:
        """Prepare the plugin; its attributes set the answers."""
        self.resource = resource
        self.socket = socket or f"probe-{resource.replace('/', '-')}.sock"
        self.options = pb.DevicePluginOptions()
        self.options_error = self.allocate_error = ""
        self.empty_answer = False
        self.prefer: list[str] = []
        self.calls: list[str] = []
        """The names of the RPCs in order, and ``registered`` for each answered Register."""
        self.allocated: list[list[str]] = []
        """The device IDs of each Allocate."""
        self.preferred: list[pb.ContainerPreferredAllocationRequest] = []
        self.streams = 0
        """The number of open ListAndWatch streams."""
        self._directory = directory
        self._devices = list(devices)
        self._queues: list[asyncio.Queue[str]] = []
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        """Start serving."""
        self._server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{os.path.join(self._directory, self.socket)}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving."""
        await self.stop()

    async def stop(self) -> None:
        """Stop serving, as a process that ends. Repeated calls have no effect."""
        if self._server is not None:
            await self._server.stop(None)

    async def register(self, *, version: str = "v1beta1") -> str:
        """Register, and return the kubelet's error or ""."""
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
        """Replace the list of devices, and send it on all streams."""
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
        """Return the options, or fail."""
        self.calls.append("GetDevicePluginOptions")
        if self.options_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.options_error)
        return self.options

    async def ListAndWatch(  # noqa: N802 - the RPC's name
        self, _request: pb.Empty, _context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse]
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Send the devices, and again after each change."""
        self.calls.append("ListAndWatch")
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._queues.append(queue)
        self.streams += 1
        try:
            while True:
                yield pb.ListAndWatchResponse(
                    devices=[pb.Device(ID=name, health=health) for name, health in self._devices]
                )
                if await queue.get() == _END:
                    return
        finally:
            self.streams -= 1
            self._queues.remove(queue)

    async def Allocate(  # noqa: N802 - the RPC's name
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse]
    ) -> pb.AllocateResponse:
        """Return a variable that lists the devices or an empty answer, or fail."""
        self.calls.append("Allocate")
        ids = [list(container.devices_ids) for container in request.container_requests]
        self.allocated += ids
        if self.allocate_error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.allocate_error)
        if self.empty_answer:
            return pb.AllocateResponse()
        answers = [pb.ContainerAllocateResponse(envs={"DEVICES": ",".join(sorted(devices))}) for devices in ids]
        return pb.AllocateResponse(container_responses=answers)

    async def GetPreferredAllocation(  # noqa: N802 - the RPC's name
        self,
        request: pb.PreferredAllocationRequest,
        _context: grpc.aio.ServicerContext[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse],
    ) -> pb.PreferredAllocationResponse:
        """Return the devices that the scenario prefers."""
        self.calls.append("GetPreferredAllocation")
        self.preferred += request.container_requests
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self.prefer)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def PreStartContainer(  # noqa: N802 - the RPC's name
        self,
        request: pb.PreStartContainerRequest,
        _context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        """Record the devices."""
        self.calls.append(f"PreStartContainer {','.join(sorted(request.devices_ids))}")
        return pb.PreStartContainerResponse()
