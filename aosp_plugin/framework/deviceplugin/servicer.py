"""The five RPCs of v1beta1 over a backend.

Requests are taken as bytes and decoded here, so that a malformed one is answered with INVALID_ARGUMENT rather
than gRPC's INTERNAL, and the list of devices is sent as the bytes that the snapshot encoded once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.deviceplugin.answers import container_response
from aosp_plugin.framework.errors import (
    AllocationError,
    InvalidRequestError,
    PluginError,
    UnhealthyDeviceError,
    UnknownDeviceError,
)
from aosp_plugin.framework.observer import NULL_OBSERVER, milliseconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.inventory import Inventory
    from aosp_plugin.framework.observer import Observer

LOG = logging.getLogger(__name__)

SERVICE = "v1beta1.DevicePlugin"

Request = TypeVar("Request", bound=Message)
Context = grpc.aio.ServicerContext[bytes, bytes]


class Servicer:
    """Answers one kubelet over one socket; every registration has a new one."""

    def __init__(
        self, backend: Backend, inventory: Inventory, rescan: Callable[[], None], observer: Observer = NULL_OBSERVER
    ) -> None:
        """``rescan`` is called where a device could not be prepared, and may not be healthy any more."""
        self._backend = backend
        self._inventory = inventory
        self._rescan = rescan
        self._observer = observer
        self._newest: asyncio.Event | None = None
        self.stream_opened = asyncio.Event()
        """Set once the kubelet has called ListAndWatch."""
        self.stream_ended = asyncio.Event()
        """Set once the newest stream has ended other than by our will: the kubelet will not open another."""

    @property
    def options(self) -> pb.DevicePluginOptions:
        """What the plugin tells the kubelet of itself, by Register to old ones and by RPC to newer ones."""
        return pb.DevicePluginOptions(
            pre_start_required=self._backend.pre_start_required,
            get_preferred_allocation_available=self._backend.get_preferred_allocation_available,
        )

    def handler(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return what a gRPC server needs to serve this."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._get_options),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
                "GetPreferredAllocation": self._unary(
                    "GetPreferredAllocation", pb.PreferredAllocationRequest, self._prefer
                ),
                "Allocate": self._unary("Allocate", pb.AllocateRequest, self._allocate),
                "PreStartContainer": self._unary("PreStartContainer", pb.PreStartContainerRequest, self._pre_start),
            },
        )

    def finish(self) -> None:
        """End the open stream, as a stop of the plugin does."""
        if self._newest is not None:
            self._newest.set()

    async def _get_options(self, _request: bytes, _context: Context) -> bytes:
        return self.options.SerializeToString()

    async def _list_and_watch(self, _request: bytes, _context: Context) -> AsyncIterator[bytes]:
        """Send the newest snapshot, and each newer one, until the kubelet, a newer stream or a stop ends it."""
        self.finish()
        over = self._newest = asyncio.Event()
        self.stream_opened.set()
        self._observer.stream_opened()
        revision = 0
        try:
            while True:
                await wait_any(self._inventory.superseded(revision), over)
                if over.is_set():
                    return
                snapshot = self._inventory.snapshot
                self._observer.sent(len(snapshot.message), first=not revision)
                LOG.debug("devices sent", extra={"revision": snapshot.revision, "bytes": len(snapshot.message)})
                yield snapshot.message
                revision = snapshot.revision
        finally:
            self._observer.stream_closed()
            if not over.is_set():
                self.stream_ended.set()

    def _unary(
        self, rpc: str, request_type: type[Request], answer: Callable[[Request], Message]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Turn a function of a decoded request into an RPC handler.

        An error that is none of ours is for gRPC to log, and UNKNOWN to the kubelet.
        """

        async def handle(data: bytes, context: Context) -> bytes:
            started = time.perf_counter()
            code, reply, error = "UNKNOWN", b"", ""
            try:
                reply = answer(_decode(request_type, data)).SerializeToString()
                code = "OK"
            except AllocationError as refusal:
                code, error = refusal.code, str(refusal)
            except (OSError, PluginError) as failure:
                code, error = "INTERNAL", str(failure)
            finally:
                seconds = time.perf_counter() - started
                self._observer.answered(rpc, code, seconds)
            if code != "OK" or LOG.isEnabledFor(logging.DEBUG):
                _log(rpc, code, error, _ids_in(request_type, data), seconds)
            if code != "OK":
                await context.abort(grpc.StatusCode[code], error)
            return reply

        return grpc.unary_unary_rpc_method_handler(handle)

    def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Answer for every container by itself, in order; all of them or, by an error, none."""
        wanted = _of_each_container(container.devices_ids for container in request.container_requests)
        for ids in wanted:
            self._check(ids)
        return pb.AllocateResponse(
            container_responses=[container_response(self._backend.allocate(ids)) for ids in wanted]
        )

    def _prefer(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        if not request.container_requests:
            raise InvalidRequestError("the request names no container")
        return pb.PreferredAllocationResponse(
            container_responses=[
                pb.ContainerPreferredAllocationResponse(
                    deviceIDs=self._backend.prefer(
                        container.available_deviceIDs,
                        container.must_include_deviceIDs,
                        container.allocation_size,
                    )
                )
                for container in request.container_requests
            ]
        )

    def _pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        (ids,) = _of_each_container([request.devices_ids])
        self._check(ids)
        try:
            self._backend.pre_start(ids)
        except AllocationError:
            self._rescan()
            raise
        return pb.PreStartContainerResponse()

    def _check(self, ids: Iterable[str]) -> None:
        known = self._inventory.snapshot.by_id
        for device_id in ids:
            device = known.get(device_id)
            if device is None:
                raise UnknownDeviceError(f"device {device_id!r} is unknown")
            if not device.healthy:
                raise UnhealthyDeviceError(f"device {device_id!r} is unhealthy: {device.why}")


def _decode(request_type: type[Request], data: bytes) -> Request:
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is no {request_type.DESCRIPTOR.full_name}: {error}") from error


def _of_each_container(requests: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return the IDs of each container, each ID once, in the order in which they were sent."""
    wanted = [list(dict.fromkeys(ids)) for ids in requests]
    if not wanted:
        raise InvalidRequestError("the request names no container")
    for position, ids in enumerate(wanted):
        if not ids:
            raise InvalidRequestError(f"the request names no device for container {position}")
    return wanted


def _ids_in(request_type: type[Message], data: bytes) -> str:
    """Return the IDs that a request asks for, for the log."""
    try:
        request = request_type.FromString(data)
    except DecodeError:
        return ""
    match request:
        case pb.AllocateRequest():
            ids = [one for container in request.container_requests for one in container.devices_ids]
        case pb.PreStartContainerRequest():
            ids = list(request.devices_ids)
        case _:
            ids = []
    return ",".join(ids)


def _log(rpc: str, code: str, error: str, ids: str, seconds: float) -> None:
    fields = {"rpc": rpc, "code": code, "device": ids, "duration_ms": milliseconds(seconds)}
    if code == "OK":
        LOG.debug("request answered", extra=fields)
    elif code == "INTERNAL":
        LOG.error("request failed", extra={**fields, "error": error})
    else:
        LOG.warning("request refused", extra={**fields, "error": error})
