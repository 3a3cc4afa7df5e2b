"""The service DRAPlugin: the kubelet's requests to prepare and unprepare the claims of a pod."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import grpc

from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.dra.interfaces import ClaimReference
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.observer import REQUEST, milliseconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from aosp_plugin.framework.dra.interfaces import ClaimHandler, PreparedDevice

    Context = grpc.aio.ServicerContext[bytes, bytes]

LOG = logging.getLogger(__name__)

T = TypeVar("T")

SERVICES = ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin")
"""v1beta1 has the same messages, without a field that this driver does not set."""

DEADLINE = 45.0
"""Seconds that kubelets wait for an answer (pkg/kubelet/cm/dra/plugin/dra_plugin.go, defaultClientCallTimeout)."""

MARGIN = 2.0
"""Seconds before the deadline when the handler should have answered; a fifth of the deadline if that is shorter."""

Rpc = Literal["NodePrepareResources", "NodeUnprepareResources"]

_numbers = itertools.count(1)


class _Failure(NamedTuple):
    """Why a claim could not be prepared or unprepared."""

    error: str


class ClaimServicer:
    """The service of one driver, for any number of sockets and kubelets.

    The end of a request, by its deadline or by the kubelet, does not end the work for its claims.
    """

    def __init__(self, handler: ClaimHandler) -> None:
        self._handler = handler
        self._running: set[asyncio.Task[object]] = set()

    def handlers(self) -> list[grpc.GenericRpcHandler[bytes, bytes]]:
        """Return the handlers for a gRPC server."""
        methods = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                self._prepare,
                pb.NodePrepareResourcesRequest.FromString,
                pb.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                self._unprepare,
                pb.NodeUnprepareResourcesRequest.FromString,
                pb.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        return [grpc.method_handlers_generic_handler(service, methods) for service in SERVICES]

    async def close(self, timeout: float) -> None:
        """Cancel the work that goes on, and wait for its end for ``timeout`` seconds."""
        running = set(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=timeout)

    async def _prepare(
        self, request: pb.NodePrepareResourcesRequest, context: Context
    ) -> pb.NodePrepareResourcesResponse:
        results = await self._answer("NodePrepareResources", request.claims, self._handler.prepare, context)
        return pb.NodePrepareResourcesResponse(claims={uid: _prepared(result) for uid, result in results.items()})

    async def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        results = await self._answer("NodeUnprepareResources", request.claims, self._handler.unprepare, context)
        claims = {
            uid: pb.NodeUnprepareResourceResponse(error=result.error if isinstance(result, _Failure) else result)
            for uid, result in results.items()
        }
        return pb.NodeUnprepareResourcesResponse(claims=claims)

    async def _answer(
        self,
        rpc: Rpc,
        requested: Iterable[pb.Claim],
        handle: Callable[[Sequence[ClaimReference], float], Awaitable[Mapping[str, T]]],
        context: Context,
    ) -> Mapping[str, T | _Failure]:
        """Return the result for each claim, and no others, before the deadline of the request."""
        REQUEST.set(str(next(_numbers)))  # gRPC runs each request in a task of its own
        claims = {claim.uid: ClaimReference(claim.namespace, claim.name, claim.uid) for claim in requested}
        remaining = min(context.time_remaining() or DEADLINE, DEADLINE)  # None without a deadline
        margin = min(MARGIN, remaining / 5)
        task = asyncio.create_task(_handle(rpc, claims, handle, remaining - margin))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            done, _ = await asyncio.wait({task}, timeout=remaining - margin / 2)
        except asyncio.CancelledError:
            LOG.warning("request cancelled by kubelet, completing it", extra={"rpc": rpc, "claim": _names(claims)})
            raise
        if done:
            return task.result()
        LOG.error(
            "request timed out, completing it",
            extra={"rpc": rpc, "claim": _names(claims), "duration_ms": milliseconds(remaining - margin / 2)},
        )
        return dict.fromkeys(claims, _Failure(f"not completed after {remaining - margin / 2:.1f} s, and going on"))


async def _handle(
    rpc: Rpc,
    claims: Mapping[str, ClaimReference],
    handle: Callable[[Sequence[ClaimReference], float], Awaitable[Mapping[str, T]]],
    seconds: float,
) -> Mapping[str, T | _Failure]:
    """Call the handler; log errors. Return a result for each claim, and no others."""
    started = time.monotonic()
    LOG.debug("request received", extra={"rpc": rpc, "claim": _names(claims)})
    results: Mapping[str, T] = {}
    missing = _Failure("internal error: the driver has no answer for this claim")
    try:
        results = await handle(tuple(claims.values()), seconds) if claims else {}
    except (OSError, PluginError) as error:
        missing = _Failure(str(error))
    except Exception as error:
        LOG.error("request failed unexpectedly", extra={"rpc": rpc, "claim": _names(claims)}, exc_info=True)  # noqa: G201 - level
        missing = _Failure(f"internal error: {type(error).__name__}: {error}")
    answer = {uid: results.get(uid, missing) for uid in claims}
    duration = milliseconds(time.monotonic() - started)
    for uid, result in answer.items():
        if problem := _error(result):
            fields = {"rpc": rpc, "claim": _name(claims[uid]), "uid": uid, "error": problem, "duration_ms": duration}
            LOG.warning("claim failed", extra=fields)
    LOG.debug("request answered", extra={"rpc": rpc, "claim": _names(claims), "duration_ms": duration})
    return answer


def _prepared(result: Sequence[PreparedDevice] | str | _Failure) -> pb.NodePrepareResourceResponse:
    if error := _error(result):
        return pb.NodePrepareResourceResponse(error=error)
    return pb.NodePrepareResourceResponse(devices=[_device(device) for device in result if not isinstance(device, str)])


def _device(device: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_devices,
    )


def _error(result: object) -> str:
    """Return the error in the result of a claim; empty if it succeeded."""
    if isinstance(result, _Failure):
        return result.error
    return result if isinstance(result, str) else ""


def _name(claim: ClaimReference) -> str:
    return f"{claim.namespace}/{claim.name}"


def _names(claims: Mapping[str, ClaimReference]) -> str:
    return ",".join(map(_name, claims.values()))
