"""One dialled plugin: its channel, its calls, its streams (pkg/kubelet/cm/devicemanager/endpoint.go)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub

PRE_START_TIMEOUT: Final = 30.0
"""Seconds (pkg/kubelet/cm/devicemanager/types.go)."""

HANG_TIMEOUT: Final = 60.0
"""Seconds. The kubelet sets no deadline here; this one only keeps a broken plugin from hanging a test."""

_T = TypeVar("_T")
_StreamCall = grpc.aio.UnaryStreamCall[pb.Empty, tuple[int, pb.ListAndWatchResponse]]
OnMessage = Callable[[pb.ListAndWatchResponse, int], None]
"""Takes a ListAndWatch message and its size on the wire in bytes."""


class PluginError(Exception):
    """A call to the plugin failed. The text is what grpc-go would say."""


def go_error(error: grpc.aio.AioRpcError) -> str:
    """Return an RPC's failure in grpc-go's words: ``rpc error: code = Internal desc = boom``."""
    name = error.code().name
    code = "Canceled" if name == "CANCELLED" else "".join(part.capitalize() for part in name.split("_"))
    code = "OK" if name == "OK" else code
    return f"rpc error: code = {code} desc = {error.details() or ''}"


def _cancelled_from_outside() -> bool:
    """Whether a CancelledError means this task; grpc.aio raises one for a closed channel as well."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _call(call: Awaitable[_T]) -> _T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise PluginError(go_error(error)) from error
    except asyncio.CancelledError:
        if _cancelled_from_outside():
            raise
        raise PluginError("rpc error: code = Canceled desc = grpc: the client connection is closing") from None


def _with_size(data: bytes) -> tuple[int, pb.ListAndWatchResponse]:
    return len(data), pb.ListAndWatchResponse.FromString(data)


class Endpoint:
    """A plugin's socket, dialled for one registration. Used on one event loop; ``close`` it always."""

    def __init__(self, resource: str, path: str, *, authority: str, max_message: int) -> None:
        self.resource = resource
        self.path = path
        self.options = pb.DevicePluginOptions()
        self.stopped_at: float | None = None
        self._channel = grpc.aio.insecure_channel(
            f"unix:{path}",
            options=[
                ("grpc.default_authority", authority),
                ("grpc.max_receive_message_length", max_message),
                # Every registration has a connection of its own; gRPC would share those to the same path.
                ("grpc.use_local_subchannel_pool", 1),
                # A plugin that registers before it serves is found soon, not after the default second.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
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
        """How many ListAndWatch streams are open."""
        return len(self._streams)

    async def dial(self, timeout: float) -> None:
        """Return once the plugin accepts; PluginError after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._channel.channel_ready()
        except TimeoutError:
            raise PluginError("failed to dial device plugin: context deadline exceeded") from None
        except grpc.aio.UsageError as error:  # closed while it was dialled
            raise PluginError(f"failed to dial device plugin: {error}") from error

    async def fetch_options(self) -> pb.DevicePluginOptions:
        """Ask the plugin for its options."""
        try:
            return await _call(self._stub.GetDevicePluginOptions(pb.Empty(), timeout=HANG_TIMEOUT))
        except PluginError as error:
            raise PluginError(f"failed to get device plugin options: {error}") from error

    async def listen(self, opened: Callable[[], None], on_message: OnMessage) -> str:
        """Open a stream and pass on its messages until it ends; return why, in grpc-go's words.

        "EOF" means that the plugin returned.
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
        """Cancel the open streams from the kubelet's side."""
        for call in self._streams:
            call.cancel()

    def _require_running(self) -> None:
        if self.stopped_at is not None:
            raise PluginError(f"endpoint &{{{self.resource} {self.path}}} has been stopped")

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Ask which of the available devices the plugin prefers; nothing if it has no preference."""
        self._require_running()
        wanted = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[wanted])
        response = await _call(self._stub.GetPreferredAllocation(request, timeout=HANG_TIMEOUT))
        return response.container_responses[0].deviceIDs if response.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> pb.AllocateResponse:
        """Allocate devices for one container."""
        self._require_running()
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return await _call(self._stub.Allocate(request, timeout=HANG_TIMEOUT))

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Tell the plugin that a container with these devices is about to start."""
        self._require_running()
        request = pb.PreStartContainerRequest(devices_ids=ids)
        await _call(self._stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT))

    async def close(self) -> None:
        """Close the connection, and with it every stream."""
        await self._channel.close(None)
