"""The five RPCs of the device plugin API v1beta1.

Requests arrive as bytes and are decoded here, so that a malformed one is answered with INVALID_ARGUMENT instead of
gRPC's INTERNAL. The device list is sent as the bytes that the snapshot encoded once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.deviceplugin import preference_request
from aosp_plugin.framework.deviceplugin.answers import container_response
from aosp_plugin.framework.errors import (
    AllocationError,
    InvalidRequestError,
    PluginError,
    PreStartTimeoutError,
    UnhealthyDeviceError,
    UnknownDeviceError,
    WorkerTimeoutError,
)
from aosp_plugin.framework.observer import NULL_OBSERVER, milliseconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.deviceplugin.preference_request import PreferenceRequest
    from aosp_plugin.framework.inventory import Inventory
    from aosp_plugin.framework.observer import Observer
    from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

SERVICE = "v1beta1.DevicePlugin"

PRE_START_TIMEOUT = 10.0
"""Seconds for ``Backend.pre_start``. The kubelet waits for 30 s (pkg/apis/deviceplugin/v1beta1/constants.go)."""

Request = TypeVar("Request")
Decoded = TypeVar("Decoded", bound=Message)
Context = grpc.aio.ServicerContext[bytes, bytes]


class Servicer:
    """The service of one registration."""

    def __init__(
        self,
        backend: Backend,
        inventory: Inventory,
        worker: Worker,
        rescan: Callable[[], None],
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """``worker`` runs ``pre_start``. ``rescan`` is called if that fails: the device may be unhealthy."""
        self._backend = backend
        self._inventory = inventory
        self._worker = worker
        self._rescan = rescan
        self._observer = observer
        self._finished = asyncio.Event()
        self._silent = False
        self.stream_opened = asyncio.Event()
        """Set when ListAndWatch was called for the first time. Any number of clients may call it; the first stream is
        the kubelet's, which calls it as soon as it has the name of the socket."""
        self.stream_ended = asyncio.Event()
        """Set when the first stream has ended unexpectedly: the kubelet will not open another one."""

    @property
    def options(self) -> pb.DevicePluginOptions:
        """The options of the plugin: old kubelets take them from Register, newer ones call GetDevicePluginOptions."""
        return pb.DevicePluginOptions(
            pre_start_required=self._backend.pre_start_required,
            get_preferred_allocation_available=self._backend.get_preferred_allocation_available,
        )

    def handler(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return the handler for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._get_options),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
                "GetPreferredAllocation": self._unary(
                    "GetPreferredAllocation", preference_request.decode, self._prefer
                ),
                "Allocate": self._unary("Allocate", partial(_decode, pb.AllocateRequest), self._allocate),
                "PreStartContainer": self._unary(
                    "PreStartContainer", partial(_decode, pb.PreStartContainerRequest), self._pre_start
                ),
            },
        )

    def silence(self) -> None:
        """Send no more lists on streams that have one: that of another plugin counts."""
        self._silent = True

    def finish(self) -> None:
        """End all streams."""
        self._finished.set()

    async def _get_options(self, _request: bytes, _context: Context) -> bytes:
        return self.options.SerializeToString()

    async def _list_and_watch(self, _request: bytes, _context: Context) -> AsyncIterator[bytes]:
        """Send the current snapshot and each newer one, until the client or ``finish`` ends the stream."""
        first = not self.stream_opened.is_set()
        self.stream_opened.set()
        self._observer.stream_opened()
        revision = 0
        try:
            while True:
                await wait_any(self._inventory.superseded(revision), self._finished)
                if revision and self._silent:
                    await self._finished.wait()
                if self._finished.is_set():
                    return
                snapshot = self._inventory.snapshot
                self._observer.sent(len(snapshot.message), first=not revision)
                LOG.debug("devices sent", extra={"revision": snapshot.revision, "bytes": len(snapshot.message)})
                yield snapshot.message
                revision = snapshot.revision
        finally:
            self._observer.stream_closed()
            if first and not self._finished.is_set():
                self.stream_ended.set()

    def _unary(
        self, rpc: str, decode: Callable[[bytes], Request], answer: Callable[[Request], Message | Awaitable[Message]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return an RPC handler that calls ``answer`` with what ``decode`` returns, which raises InvalidRequestError.

        An unexpected error is logged by gRPC and answered with UNKNOWN.
        """

        async def handle(data: bytes, context: Context) -> bytes:
            started = time.perf_counter()
            code, reply, error = "UNKNOWN", b"", ""
            request: Request | None = None
            try:
                request = decode(data)
                message = answer(request)
                reply = (message if isinstance(message, Message) else await message).SerializeToString()
                code = "OK"
            except AllocationError as rejection:
                code, error = rejection.code, str(rejection)
            except (OSError, PluginError) as failure:
                code, error = "INTERNAL", str(failure)
            finally:
                seconds = time.perf_counter() - started
                self._observer.answered(rpc, code, seconds)
            if code != "OK" or LOG.isEnabledFor(logging.DEBUG):
                _log(rpc, code, error, _ids_in(request), seconds)
            if code != "OK":
                await context.abort(grpc.StatusCode[code], error)
            return reply

        return grpc.unary_unary_rpc_method_handler(handle)

    def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Answer for each container separately, in order; an error rejects the whole request."""
        requests = _ids_per_container(container.devices_ids for container in request.container_requests)
        for ids in requests:
            self._check(ids)
        return pb.AllocateResponse(
            container_responses=[container_response(self._backend.allocate(ids)) for ids in requests]
        )

    def _prefer(self, request: Sequence[PreferenceRequest]) -> pb.PreferredAllocationResponse:
        return pb.PreferredAllocationResponse(
            container_responses=[
                pb.ContainerPreferredAllocationResponse(deviceIDs=self._backend.prefer(*container))
                for container in request
            ]
        )

    async def _pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        """Prepare the devices in the worker thread. The end of the client's call does not end the preparation."""
        (ids,) = _ids_per_container([request.devices_ids])
        self._check(ids)
        try:
            await self._worker.run(
                partial(self._backend.pre_start, ids), PRE_START_TIMEOUT, label="preparation of a device"
            )
        except WorkerTimeoutError as error:
            self._rescan()
            raise PreStartTimeoutError(f"{_named(ids)} could not be prepared: {error}") from error
        except Exception:
            self._rescan()
            raise
        return pb.PreStartContainerResponse()

    def _check(self, ids: Iterable[str]) -> None:
        known = self._inventory.snapshot.devices
        for device_id in ids:
            device = known.get(device_id)
            if device is None:
                raise UnknownDeviceError(f"device {device_id!r} is unknown")
            if not device.healthy:
                raise UnhealthyDeviceError(f"device {device_id!r} is unhealthy: {device.why}")


def _named(ids: Sequence[str]) -> str:
    return f"device{'' if len(ids) == 1 else 's'} {', '.join(map(repr, ids))}"


def _decode(request_type: type[Decoded], data: bytes) -> Decoded:
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a valid {request_type.DESCRIPTOR.full_name}: {error}") from error


def _ids_per_container(requests: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return the IDs of each container, without duplicates, in the order of the request. Raises InvalidRequestError."""
    unique = [list(dict.fromkeys(ids)) for ids in requests]
    if not unique:
        raise InvalidRequestError("the request names no container")
    for position, ids in enumerate(unique):
        if not ids:
            raise InvalidRequestError(f"the request names no device for container {position}")
    return unique


def _ids_in(request: object) -> str:
    """Return the IDs in a request, for the log; those of GetPreferredAllocation would be too many."""
    match request:
        case pb.AllocateRequest():
            ids = [device_id for container in request.container_requests for device_id in container.devices_ids]
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
