"""The five RPCs of the device plugin API v1beta1.

Requests arrive as bytes and are decoded here, so that a malformed one is answered with INVALID_ARGUMENT instead of
gRPC's INTERNAL. The device list is sent as the bytes that the snapshot encoded once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from aosp_plugin.framework.aio import call_in_loop
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.deviceplugin import allocate_request, answers, preference_request
from aosp_plugin.framework.deviceplugin.request_threads import leave_place
from aosp_plugin.framework.deviceplugin.streams import Streams
from aosp_plugin.framework.errors import (
    AllocationError,
    InvalidRequestError,
    PluginError,
    PreStartTimeoutError,
    UnhealthyDeviceError,
    UnknownDeviceError,
    WorkerTimeoutError,
)
from aosp_plugin.framework.observer import NULL_OBSERVER, RESOURCE, milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.inventory import Inventory
    from aosp_plugin.framework.observer import Observer
    from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

SERVICE = "v1beta1.DevicePlugin"

PRE_START_TIMEOUT = 10.0
"""Seconds for ``Backend.pre_start``. The kubelet waits for 30 s (pkg/apis/deviceplugin/v1beta1/constants.go)."""

Request = TypeVar("Request", bound=Message)


class Servicer:
    """The service of one registration. gRPC calls its handlers in threads, several at once."""

    def __init__(
        self,
        backend: Backend,
        inventory: Inventory,
        worker: Worker,
        rescan: Callable[[], None],
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """To be called in the event loop.

        ``worker`` runs ``pre_start``. ``rescan`` is called in the event loop if that fails: the device may be
        unhealthy.
        """
        self._backend = backend
        self._inventory = inventory
        self._worker = worker
        self._rescan = partial(call_in_loop, asyncio.get_running_loop(), rescan)
        self._observer = observer
        self._streams = Streams(backend.resource_name, inventory, observer)

    @property
    def stream_opened(self) -> asyncio.Event:
        """Set when ListAndWatch was called for the first time.

        Any number of clients may call it; the first stream is the kubelet's, which calls it as soon as it has the name
        of the socket.
        """
        return self._streams.opened

    @property
    def stream_ended(self) -> asyncio.Event:
        """Set when the first stream has ended unexpectedly: the kubelet will not open another one."""
        return self._streams.ended

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
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._streams.serve),
                "GetPreferredAllocation": self._unary("GetPreferredAllocation", self._prefer),
                "Allocate": self._unary("Allocate", self._allocate),
                "PreStartContainer": self._unary("PreStartContainer", self._pre_start),
            },
        )

    def silence(self) -> None:
        """Send no more lists on streams that have one: that of another plugin counts."""
        self._streams.silence()

    def finish(self) -> None:
        """End all streams. To be called in the event loop."""
        self._streams.finish()

    def _get_options(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        return self.options.SerializeToString()

    def _unary(self, rpc: str, answer: Callable[[bytes], bytes]) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return an RPC handler that calls ``answer`` with the encoded request, and sends its result.

        An unexpected error is logged by gRPC and answered with UNKNOWN.
        """

        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            RESOURCE.set(self._backend.resource_name)
            started = time.perf_counter()
            code, reply, error = "UNKNOWN", b"", ""
            try:
                reply = answer(request)
                code = "OK"
            except AllocationError as rejection:
                code, error = rejection.code, str(rejection)
            except (OSError, PluginError) as failure:
                code, error = "INTERNAL", str(failure)
            except BaseException as bug:
                # gRPC would never answer if its text is not UTF-8, or it is SystemExit; and Allocate has no deadline.
                raise RuntimeError(ascii(bug)) from bug
            finally:
                seconds = time.perf_counter() - started
                self._observer.answered(rpc, code, seconds)
            if code != "OK" or LOG.isEnabledFor(logging.DEBUG):
                _log(rpc, code, error, _ids_in(rpc, request), seconds)
            if code != "OK":
                context.abort(grpc.StatusCode[code], error.encode(errors="backslashreplace").decode())
            return reply

        return grpc.unary_unary_rpc_method_handler(handle)

    def _allocate(self, data: bytes) -> bytes:
        """Answer for each container separately, in order; an error rejects the whole request."""
        requests = _ids_per_container(allocate_request.decode(data))
        for ids in requests:
            self._check(ids)
        return answers.response([self._backend.allocate_encoded(ids) for ids in requests])

    def _prefer(self, data: bytes) -> bytes:
        return pb.PreferredAllocationResponse(
            container_responses=[
                pb.ContainerPreferredAllocationResponse(deviceIDs=self._backend.prefer(*container))
                for container in preference_request.decode(data)
            ]
        ).SerializeToString()

    def _pre_start(self, data: bytes) -> bytes:
        """Prepare the devices in the worker thread. The end of the client's call does not end the preparation."""
        request = _decode(pb.PreStartContainerRequest, data)
        (ids,) = _ids_per_container([request.devices_ids])
        self._check(ids)
        leave_place()
        try:
            self._worker.call(partial(self._backend.pre_start, ids), PRE_START_TIMEOUT, label="preparation of a device")
        except WorkerTimeoutError as error:
            self._rescan()
            raise PreStartTimeoutError(f"{_named(ids)} could not be prepared: {error}") from error
        except Exception:
            self._rescan()
            raise
        return b""

    def _check(self, ids: Collection[str]) -> None:
        known = self._inventory.snapshot.devices
        if known.all_healthy(ids):
            return
        for device_id in ids:
            device = known.get(device_id)
            if device is None:
                raise UnknownDeviceError(f"device {device_id!r} is unknown")
            if not device.healthy:
                raise UnhealthyDeviceError(f"device {device_id!r} is unhealthy: {device.why}")


def _named(ids: Sequence[str]) -> str:
    return f"device{'' if len(ids) == 1 else 's'} {', '.join(map(repr, ids))}"


def _decode(request_type: type[Request], data: bytes) -> Request:
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


def _ids_in(rpc: str, request: bytes) -> str:
    """Return the IDs in an encoded request, for the log; empty if it cannot be decoded, or has all free ones."""
    ids: list[str] = []
    with contextlib.suppress(DecodeError):
        if rpc == "Allocate":
            containers = pb.AllocateRequest.FromString(request).container_requests
            ids = [device_id for container in containers for device_id in container.devices_ids]
        elif rpc == "PreStartContainer":
            ids = [*pb.PreStartContainerRequest.FromString(request).devices_ids]
    return ",".join(ids)


def _log(rpc: str, code: str, error: str, ids: str, seconds: float) -> None:
    fields = {"rpc": rpc, "code": code, "device": ids, "duration_ms": milliseconds(seconds)}
    if code == "OK":
        LOG.debug("request answered", extra=fields)
    elif code == "INTERNAL":
        LOG.error("request failed", extra={**fields, "error": error})
    else:
        LOG.warning("request refused", extra={**fields, "error": error})
