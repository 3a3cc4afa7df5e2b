"""The five RPCs of the device plugin API v1beta1.

Requests arrive as bytes and are decoded here, so that a malformed one is answered with INVALID_ARGUMENT instead of
gRPC's INTERNAL. The device list is sent as the bytes that the snapshot encoded once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.devices import ContainerEdits
from aosp_plugin.framework.errors import (
    AllocationError,
    InvalidRequestError,
    PluginError,
    PreStartTimeoutError,
    UnhealthyDeviceError,
    UnknownDeviceError,
    WorkerTimeoutError,
)
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.observer import NULL_OBSERVER, Observer, milliseconds
from aosp_plugin.framework.registration import Context
from aosp_plugin.framework.timings import DEFAULT, Timings
from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

DEVICE_PLUGIN = "v1beta1.DevicePlugin"

RequestT = TypeVar("RequestT", bound=Message)


class Servicer:
    """The service of one registration. gRPC calls its handlers in the event loop."""

    def __init__(
        self,
        backend: Backend,
        inventory: Inventory,
        worker: Worker,
        rescan: Callable[[], None],
        streams_changed: Callable[[], None],
        observer: Observer = NULL_OBSERVER,
        timings: Timings = DEFAULT,
    ) -> None:
        """``worker`` runs ``pre_start``. ``rescan`` is called if that fails: the device may be unhealthy.

        ``streams_changed`` is called when ``stream_opened`` or ``stream_ended`` becomes true.
        """
        self._backend = backend
        self._inventory = inventory
        self._worker = worker
        self._rescan = rescan
        self._streams_changed = streams_changed
        self._observer = observer
        self._timings = timings
        self._silent = False
        self._finished = asyncio.Event()
        self.stream_opened = False
        """Whether ListAndWatch was called.

        Any number of clients may call it; the first stream is the kubelet's, which calls it as soon as it has the name
        of the socket.
        """
        self.stream_ended = False
        """Whether the first stream has ended unexpectedly: the kubelet will not open another one."""

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
            DEVICE_PLUGIN,
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

    def silence(self) -> None:
        """Send no more lists on streams that have one: that of another plugin counts."""
        self._silent = True

    def finish(self) -> None:
        """End all streams."""
        self._finished.set()

    async def _get_options(self, _request: bytes, _context: Context) -> bytes:
        return self.options.SerializeToString()

    async def _list_and_watch(self, _request: bytes, context: Context) -> None:
        """Send the current snapshot and each newer one, until the client or ``finish`` ends the stream.

        A client that does not read delays nothing but its own stream.
        """
        first, self.stream_opened = not self.stream_opened, True
        self._observer.stream_opened()
        self._streams_changed()
        sent = 0
        try:
            while not self._finished.is_set():
                snapshot = self._inventory.snapshot
                if snapshot.revision > sent and not (sent and self._silent):
                    self._observer.sent(len(snapshot.message), first=not sent)
                    LOG.debug("devices sent", extra={"revision": snapshot.revision, "bytes": len(snapshot.message)})
                    await context.write(snapshot.message)
                    sent = snapshot.revision
                else:
                    await wait_any(self._inventory.superseded(snapshot.revision), self._finished)
        finally:
            self._observer.stream_closed()
            if first and not self._finished.is_set():
                self.stream_ended = True
                self._streams_changed()

    def _unary(
        self, rpc: str, request_type: type[RequestT], answer: Callable[[RequestT], Awaitable[Message]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return an RPC handler that calls ``answer`` with the request, and sends its result.

        An unexpected error is logged by gRPC and answered with UNKNOWN.
        """

        async def handle(data: bytes, context: Context) -> bytes:
            started = time.perf_counter()
            code, reply, error = "UNKNOWN", b"", ""
            request = request_type()
            try:
                _decode(request, data)
                reply = (await answer(request)).SerializeToString()
                code = "OK"
            except AllocationError as rejection:
                code, error = rejection.code, str(rejection)
            except (OSError, PluginError) as failure:
                code, error = "INTERNAL", str(failure)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except BaseException as bug:
                # gRPC would never answer if its text is not UTF-8, or it is SystemExit; and Allocate has no deadline.
                raise RuntimeError(ascii(bug)) from bug
            finally:
                seconds = time.perf_counter() - started
                self._observer.answered(rpc, code, seconds)
            if code != "OK" or LOG.isEnabledFor(logging.DEBUG):
                _log(rpc, code, error, _ids_in(request), seconds)
            if code != "OK":
                await context.abort(grpc.StatusCode[code], error.encode(errors="backslashreplace").decode())
            return reply

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Answer for each container separately, in order; an error rejects the whole request."""
        containers = _ids_per_container(container.devices_ids for container in request.container_requests)
        for ids in containers:
            self._check(ids)
        return pb.AllocateResponse(container_responses=[_answer(self._backend.allocate(ids)) for ids in containers])

    async def _prefer(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        if not request.container_requests:
            raise InvalidRequestError("the request names no container")
        chosen = [
            self._backend.prefer(
                container.available_deviceIDs[:], container.must_include_deviceIDs[:], container.allocation_size
            )
            for container in request.container_requests
        ]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]
        )

    async def _pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        """Prepare the devices in the worker thread. The end of the client's call does not end the preparation."""
        (ids,) = _ids_per_container([request.devices_ids])
        self._check(ids)
        try:
            prepare = partial(self._backend.pre_start, ids)
            await self._worker.run(prepare, self._timings.pre_start, label="preparation of a device")
        except WorkerTimeoutError as error:
            self._rescan()
            raise PreStartTimeoutError(f"{_named(ids)} could not be prepared: {error}") from error
        except Exception:
            self._rescan()
            raise
        return pb.PreStartContainerResponse()

    def _check(self, ids: Collection[str]) -> None:
        devices = self._inventory.snapshot.devices
        for device_id in ids:
            device = devices.get(device_id)
            if device is None:
                raise UnknownDeviceError(f"device {device_id!r} is unknown")
            if not device.healthy:
                raise UnhealthyDeviceError(f"device {device_id!r} is unhealthy: {device.why}")


def _answer(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=edits.environment,
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in edits.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in edits.devices
        ],
        annotations=edits.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )


def _named(ids: Sequence[str]) -> str:
    return f"device{'' if len(ids) == 1 else 's'} {', '.join(map(repr, ids))}"


def _decode(request: Message, data: bytes) -> None:
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a valid {request.DESCRIPTOR.full_name}: {error}") from error


def _ids_per_container(requests: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the IDs of each container, without duplicates, in the order of the request. Raises InvalidRequestError."""
    unique = [list(dict.fromkeys(ids)) for ids in requests]
    if not unique:
        raise InvalidRequestError("the request names no container")
    for position, ids in enumerate(unique):
        if not ids:
            raise InvalidRequestError(f"the request names no device for container {position}")
    return unique


def _ids_in(request: Message) -> str:
    """Return the IDs in a request, for the log; empty if it has all free ones."""
    match request:
        case pb.AllocateRequest(container_requests=containers):
            return ",".join(device_id for container in containers for device_id in container.devices_ids)
        case pb.PreStartContainerRequest(devices_ids=ids):
            return ",".join(ids)
    return ""


def _log(rpc: str, code: str, error: str, ids: str, seconds: float) -> None:
    fields = {"rpc": rpc, "code": code, "device": ids, "duration_ms": milliseconds(seconds)}
    if code == "OK":
        LOG.debug("request answered", extra=fields)
    elif code == "INTERNAL":
        LOG.error("request failed", extra={**fields, "error": error})
    else:
        LOG.warning("request refused", extra={**fields, "error": error})
