"""The five RPCs of the device plugin API v1beta1.

Requests arrive as bytes and are decoded here, so that a malformed one is answered with INVALID_ARGUMENT instead of
gRPC's INTERNAL. The device list is sent as the bytes that the snapshot encoded once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.backend import Backend, ContainerEdits
from aosp_plugin.framework.errors import (
    AllocationError,
    InvalidRequestError,
    PluginError,
    PreStartTimeoutError,
    UnhealthyDeviceError,
    WorkerTimeoutError,
)
from aosp_plugin.framework.inventory import Inventory, Snapshot
from aosp_plugin.framework.plugin_socket import Context
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service.logs import milliseconds
from aosp_plugin.framework.timing import wait_any
from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

DEVICE_PLUGIN = "v1beta1.DevicePlugin"

_HOST_FAILED = {"INTERNAL", PreStartTimeoutError.code}
"""The codes of answers to requests that the host let fail; the plugin refuses the others."""

LONGEST_TEXT = 1000
"""Characters of an error, and of the IDs in a log record. An error is part of the trailers, of which a gRPC client
refuses 16 KiB: it would get RESOURCE_EXHAUSTED instead of the code."""

RequestT = TypeVar("RequestT", bound=Message)


ARRIVAL = 0.25
"""Seconds for a client to receive an answer: it may notice the end of a stream first, although that is sent later."""


class Servicer:
    """The service of one registration. gRPC calls its handlers in the event loop."""

    def __init__(
        self,
        backend: Backend[Any],
        inventory: Inventory,
        worker: Worker,
        rescan: Callable[[], None],
        streams_changed: Callable[[], None],
        pods_changed: Callable[[], None],
        runtime: Runtime,
    ) -> None:
        """``worker`` runs ``pre_start``. ``rescan`` is called if it fails, because the device may be unhealthy.

        ``streams_changed`` is called when ``stream_opened`` or ``stream_ended`` becomes true, and ``pods_changed``
        after each successful Allocate.
        """
        self._backend = backend
        self._inventory = inventory
        self._worker = worker
        self._rescan = rescan
        self._streams_changed = streams_changed
        self._pods_changed = pods_changed
        self._resource = backend.resource_name
        self._metrics = runtime.metrics
        self._timings = runtime.timings
        self._silent = False
        self._finished = asyncio.Event()
        self._preparing: set[asyncio.Task[None]] = set()
        self._requests: set[asyncio.Task[Any]] = set()
        """gRPC's tasks for requests without an answer yet, except streams."""
        self._answered = -math.inf
        """When the last of these requests ended, in the time of the event loop."""
        self.stream_opened = False
        """Whether ListAndWatch was called.

        Any number of clients may call it; the first stream is the kubelet's, which calls it as soon as it has the name
        of the socket.
        """
        self.stream_ended = False
        """Whether the first stream has ended unexpectedly: the kubelet does not open it again."""

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
        """Send no more lists on streams that have got one: the list of another plugin counts."""
        self._silent = True

    async def all_answered(self, timeout: float) -> None:
        """Wait until the client has the answers to its present requests, or for ``timeout`` seconds.

        Returns at once if the client has gone, because its requests have then ended.
        """
        if self._requests:
            await asyncio.wait({*self._requests}, timeout=timeout)
        if not self.stream_ended:
            await asyncio.sleep(self._answered + ARRIVAL - asyncio.get_running_loop().time())

    def finish(self) -> None:
        """End all streams."""
        self._finished.set()

    async def _get_options(self, _request: bytes, _context: Context) -> bytes:
        return self.options.SerializeToString()

    async def _list_and_watch(self, _request: bytes, context: Context) -> None:
        """Send the current snapshot and each newer one, until the client or ``finish`` ends the stream.

        A client that does not read delays only its own stream.
        """
        first, self.stream_opened = not self.stream_opened, True
        streams_open = self._metrics.streams_open.labels(self._resource)
        streams_open.inc()
        self._streams_changed()
        sent = 0
        try:
            while not self._finished.is_set():
                snapshot = self._inventory.snapshot
                if snapshot.revision > sent and not (sent and self._silent):
                    self._count_sent(snapshot, first=not sent)
                    LOG.debug("devices sent", extra={"revision": snapshot.revision, "bytes": len(snapshot.message)})
                    await context.write(snapshot.message)
                    sent = snapshot.revision
                else:
                    await wait_any(self._inventory.superseded(snapshot.revision), self._finished)
        finally:
            streams_open.dec()
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
            task = cast("asyncio.Task[Any]", asyncio.current_task())  # it ends when the answer is sent
            self._requests.add(task)
            task.add_done_callback(self._request_ended)
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
                # gRPC would not answer for SystemExit, nor for a text that is not UTF-8, and Allocate has no deadline.
                raise RuntimeError(ascii(bug)) from bug
            finally:
                seconds = time.perf_counter() - started
                self._count_answered(rpc, code, seconds)
            error = error[:LONGEST_TEXT]
            if code != "OK" or LOG.isEnabledFor(logging.DEBUG):
                _log(rpc, code, error, _ids_in(request), seconds)
            # Not context.abort: gRPC keeps the error that it raises, whose traceback has this frame and the request
            # (_cython/_cygrpc/aio/server.pyx.pxi, RPCState.abort_exception), until the cycle is collected.
            if code != "OK":
                context.set_code(grpc.StatusCode[code])
                context.set_details(error.encode(errors="backslashreplace").decode())
            return reply

        return grpc.unary_unary_rpc_method_handler(handle)

    def _count_sent(self, snapshot: Snapshot, *, first: bool) -> None:
        """Count a message. The latency of the first message of a stream would include the kubelet's absence."""
        self._metrics.messages_sent.labels(self._resource).inc()
        self._metrics.message_bytes.labels(self._resource).set(len(snapshot.message))
        since, self._inventory.changed_since = self._inventory.changed_since, None
        if since is not None and not first:
            self._metrics.update_latency.labels(self._resource).observe(time.monotonic() - since)

    def _count_answered(self, rpc: str, code: str, seconds: float) -> None:
        if rpc == "PreStartContainer":
            self._metrics.pre_starts.labels(self._resource, code).inc()
        if rpc == "Allocate":
            self._metrics.allocations.labels(self._resource, code).inc()
            self._metrics.allocation_duration.labels(self._resource).observe(seconds)
            if code == "OK":
                self._pods_changed()

    def _request_ended(self, task: asyncio.Task[Any]) -> None:
        self._requests.discard(task)
        self._answered = asyncio.get_running_loop().time()

    async def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Answer for each container separately, in order; an error rejects the whole request."""
        containers = _ids_per_container(container.devices_ids for container in request.container_requests)
        for ids in containers:
            self._inventory.snapshot.require(ids)
        answers = [_answer(self._backend.allocate(self._inventory.found, ids)) for ids in containers]
        if self._backend.pre_start_required:
            self._prepare_early([device_id for ids in containers for device_id in ids])
        return pb.AllocateResponse(container_responses=answers)

    def _prepare_early(self, ids: Sequence[str]) -> None:
        """Prepare allocated devices in the background, for a kubelet that does not call PreStartContainer.

        A restarted kubelet does not know the options of a plugin until the plugin has registered, and starts containers
        without the call (pkg/kubelet/cm/devicemanager/manager.go ``readCheckpoint``,
        ``callPreStartContainerIfNeeded``). Version 1.20 also starts the containers of new pods in this way, which would
        get the devices as another pod left them; versions since 1.25.16 at the latest reject such pods
        (``devicesToAllocate``).

        No container gets a device during its preparation: the kubelet creates the containers of a pod after all devices
        are allocated, and the worker runs this preparation before that for PreStartContainer, which also repeats a
        failed one.
        """
        task = asyncio.create_task(self._prepare(ids))
        self._preparing.add(task)  # the event loop itself keeps only a weak reference
        task.add_done_callback(self._prepared_early)

    def _prepared_early(self, task: asyncio.Task[None]) -> None:
        self._preparing.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved, or asyncio would log it

    async def _prefer(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        if not request.container_requests:
            raise InvalidRequestError("the request names no container")
        found = self._inventory.found
        if found is None:
            raise UnhealthyDeviceError("the devices have not been scanned yet")
        chosen = [
            self._backend.prefer(
                found, container.available_deviceIDs[:], container.must_include_deviceIDs[:], container.allocation_size
            )
            for container in request.container_requests
        ]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]
        )

    async def _pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        """Prepare the devices in the worker thread. The preparation continues if the client ends its call."""
        (requested,) = _ids_per_container([request.devices_ids])
        listed = self._inventory.snapshot.devices
        # A device that is no longer in the configuration stays as the pod got it.
        ids = [each for each in requested if each in listed or not self._backend.is_former(each)]
        self._inventory.snapshot.require(ids, by_owner=True)
        if ids:
            await self._prepare(ids)
        return pb.PreStartContainerResponse()

    async def _prepare(self, ids: Sequence[str]) -> None:
        try:
            prepare = partial(self._backend.pre_start, self._inventory.found, ids)
            await self._worker.run(prepare, self._timings.pre_start, label="preparation of a device")
        except WorkerTimeoutError as error:
            self._rescan()
            named = f"device{'' if len(ids) == 1 else 's'} {', '.join(map(repr, ids))}"
            raise PreStartTimeoutError(f"{named} could not be prepared: {error}") from error
        except Exception:
            self._rescan()
            raise


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
    """Return the IDs in a request, for the log; empty if the request has all free devices."""
    match request:
        case pb.AllocateRequest(container_requests=containers):
            return ",".join(device_id for container in containers for device_id in container.devices_ids)
        case pb.PreStartContainerRequest(devices_ids=ids):
            return ",".join(ids)
    return ""


def _log(rpc: str, code: str, error: str, ids: str, seconds: float) -> None:
    fields = {"rpc": rpc, "code": code, "device": ids[:LONGEST_TEXT], "duration_ms": milliseconds(seconds)}
    if code == "OK":
        LOG.debug("request answered", extra=fields)
    elif code in _HOST_FAILED:
        LOG.error("request failed", extra={**fields, "error": error})
    else:
        LOG.warning("request refused", extra={**fields, "error": error})
