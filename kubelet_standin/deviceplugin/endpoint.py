"""The kubelet's client of one plugin: channel, calls and streams (pkg/kubelet/cm/devicemanager/endpoint.go)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import grpc

from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.api.deviceplugin_pb2_grpc import DevicePluginStub

PRE_START_TIMEOUT: Final = 30.0
"""Seconds (pkg/kubelet/cm/devicemanager/types.go)."""

HANG_TIMEOUT: Final = 60.0
"""Seconds. The kubelet sets no deadline for these calls; this one prevents a broken plugin from blocking a test."""

_T = TypeVar("_T")
_StreamCall = grpc.aio.UnaryStreamCall[pb.Empty, tuple[int, pb.ListAndWatchResponse]]
OnMessage = Callable[[pb.ListAndWatchResponse, int], None]
"""Called with a ListAndWatch message and its size on the wire in bytes."""


class CallError(Exception):
    """A call to the plugin failed. The text is grpc-go's."""


def go_error(error: grpc.aio.AioRpcError) -> str:
    """Format an RPC error as grpc-go does: ``rpc error: code = Internal desc = boom``."""
    name = error.code().name
    code = {"CANCELLED": "Canceled", "OK": "OK"}.get(name, name.title().replace("_", ""))
    return f"rpc error: code = {code} desc = {error.details() or ''}"


def _cancelled_from_outside() -> bool:
    """Whether the current task is being cancelled; grpc.aio raises CancelledError for a closed channel as well."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _with_size(data: bytes) -> tuple[int, pb.ListAndWatchResponse]:
    return len(data), pb.ListAndWatchResponse.FromString(data)


class Endpoint:
    """The connection to a plugin for one registration. Belongs to one event loop; it must be closed."""

    def __init__(self, resource: str, path: str, channel: Callable[..., grpc.aio.Channel], max_message: int) -> None:
        """``channel`` opens a channel to a path, with options."""
        self.resource = resource
        self.path = path
        self.options = pb.DevicePluginOptions()
        self.stopped_at: float | None = None
        self._channel = channel(
            path,
            ("grpc.max_receive_message_length", max_message),
            # Some plugins register before they serve; the default first retry is after one second.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        )
        self._stub = DevicePluginStub(self._channel)
        self._list_and_watch = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=pb.Empty.SerializeToString,
            response_deserializer=_with_size,
        )
        self._streams: list[_StreamCall] = []

    @property
    def streams(self) -> int:
        """The number of open ListAndWatch streams."""
        return len(self._streams)

    async def dial(self, timeout: float) -> None:
        """Wait until the plugin accepts the connection; CallError after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._channel.channel_ready()
        except TimeoutError:
            raise CallError("failed to dial device plugin: context deadline exceeded") from None
        except grpc.aio.UsageError as error:  # the channel was closed meanwhile
            raise CallError(f"failed to dial device plugin: {error}") from error

    async def fetch_options(self) -> pb.DevicePluginOptions:
        """Call GetDevicePluginOptions."""
        return await self._call(
            self._stub.GetDevicePluginOptions, pb.Empty(), failure="failed to get device plugin options: "
        )

    async def listen(self, opened: Callable[[], None], on_message: OnMessage) -> str:
        """Open a stream and pass its messages to ``on_message`` until it ends.

        Returns the reason in grpc-go's words; "EOF" means that the plugin returned from ListAndWatch.
        """
        call: _StreamCall = self._list_and_watch(pb.Empty())
        self._streams.append(call)
        opened()
        try:
            async for size, message in call:
                on_message(message, size)
        except grpc.aio.AioRpcError as error:
            return go_error(error)
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            return "rpc error: code = Canceled desc = context canceled"
        finally:
            call.cancel()
            self._streams.remove(call)
        return "EOF"

    def drop_streams(self) -> None:
        """Cancel the open streams as a client."""
        for call in self._streams:
            call.cancel()

    async def _call(
        self, method: Callable[..., Awaitable[_T]], request: object, timeout: float = HANG_TIMEOUT, failure: str = ""
    ) -> _T:
        """Call a method of the plugin. The text of a CallError begins with ``failure``."""
        if self.stopped_at is not None:
            raise CallError(f"{failure}endpoint &{{{self.resource} {self.path}}} has been stopped")
        try:
            return await method(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise CallError(f"{failure}{go_error(error)}") from error
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            closing = "rpc error: code = Canceled desc = grpc: the client connection is closing"
            raise CallError(f"{failure}{closing}") from None

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Call GetPreferredAllocation; an empty result means that the plugin has no preference."""
        container_request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[container_request])
        failure = "device plugin GetPreferredAllocation rpc failed with err: "
        response = await self._call(self._stub.GetPreferredAllocation, request, failure=failure)
        return response.container_responses[0].deviceIDs if response.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> pb.AllocateResponse:
        """Call Allocate for one container."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return await self._call(self._stub.Allocate, request)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Call PreStartContainer for a container's devices."""
        request = pb.PreStartContainerRequest(devices_ids=ids)
        failure = "device plugin PreStartContainer rpc failed with err: "
        await self._call(self._stub.PreStartContainer, request, PRE_START_TIMEOUT, failure)

    async def close(self) -> None:
        """Close the connection and its streams."""
        await self._channel.close(None)
