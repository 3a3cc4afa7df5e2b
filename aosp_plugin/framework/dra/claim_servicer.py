"""The kubelet's requests to a DRA driver: to prepare and unprepare the claims of a pod, and to report health."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Literal, TypeVar

import grpc

from aosp_plugin.framework.api import dra_health_pb2 as health_pb
from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.dra.claim_records import ClaimReference, PreparedDevice
from aosp_plugin.framework.dra.claims import Claims, DeviceHealth
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.observer import REQUEST, milliseconds
from aosp_plugin.framework.registration import Context
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Timings

LOG = logging.getLogger(__name__)

T = TypeVar("T")

CLAIM_SERVICES = ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin")
"""v1beta1 has the same messages, without a field that this driver does not set."""

HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The messages of both are the same."""

DEADLINE = 45.0
"""Seconds that kubelets wait for an answer (pkg/kubelet/cm/dra/plugin/dra_plugin.go, defaultClientCallTimeout)."""

MARGIN = 2.0
"""Seconds before the deadline when a claim should have been handled; a fifth of the deadline if that is shorter."""


HEALTH_TIMEOUT = 30
"""Seconds without a report after which the kubelet considers the health unknown: its default, too
(pkg/kubelet/cm/dra/healthinfo.go)."""

MAX_MESSAGE_LENGTH = 256
"""Characters of the reason why a device is unhealthy: the kubelet receives up to 4 MiB, so some 10,000 devices."""

Rpc = Literal["NodePrepareResources", "NodeUnprepareResources"]

_numbers = itertools.count(1)


class ClaimServicer:
    """The services of one driver, for any number of sockets and kubelets.

    The end of a request, by its deadline or by the kubelet, does not end the work for its claims.
    """

    def __init__(self, claims: Claims, timings: Timings = DEFAULT, clock: Clock = CLOCK) -> None:
        self._claims = claims
        self._timings = timings
        self._clock = clock
        self._running: set[asyncio.Task[object]] = set()

    def handlers(self, finished: asyncio.Event) -> list[grpc.GenericRpcHandler[bytes, bytes]]:
        """Return the handlers for a gRPC server; ``finished`` ends their streams."""
        requests = {
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
        health = grpc.unary_stream_rpc_method_handler(
            partial(self._watch_health, finished),
            health_pb.NodeWatchResourcesRequest.FromString,
            health_pb.NodeWatchResourcesResponse.SerializeToString,
        )
        stream = {"NodeWatchResources": health}
        services = [*((name, requests) for name in CLAIM_SERVICES), *((name, stream) for name in HEALTH_SERVICES)]
        return [grpc.method_handlers_generic_handler(name, methods) for name, methods in services]

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
        results = await self._answer("NodePrepareResources", request.claims, self._claims.prepare, context)
        return pb.NodePrepareResourcesResponse(
            claims={
                uid: pb.NodePrepareResourceResponse(error=result)
                if isinstance(result, str)
                else pb.NodePrepareResourceResponse(devices=map(_device, result))
                for uid, result in results.items()
            }
        )

    async def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        results = await self._answer("NodeUnprepareResources", request.claims, self._claims.unprepare, context)
        claims = {uid: pb.NodeUnprepareResourceResponse(error=error or "") for uid, error in results.items()}
        return pb.NodeUnprepareResourcesResponse(claims=claims)

    async def _answer(
        self,
        rpc: Rpc,
        requested: Iterable[pb.Claim],
        handle: Callable[[ClaimReference, float], Awaitable[T]],
        context: Context,
    ) -> Mapping[str, T | str]:
        """Return the result or the error of each claim, and no others, before the deadline of the request.

        The kubelet passes all claims of a pod in one request, and refuses an answer with other claims
        (pkg/kubelet/cm/dra/manager.go).
        """
        REQUEST.set(str(next(_numbers)))  # gRPC runs each request in a task of its own
        claims = {claim.uid: ClaimReference(claim.namespace, claim.name, claim.uid) for claim in requested}
        remaining = min(context.time_remaining() or DEADLINE, DEADLINE)  # None without a deadline
        margin = min(MARGIN, remaining / 5)
        seconds = remaining - margin / 2
        tasks = {
            uid: asyncio.create_task(self._outcome(rpc, claim, handle(claim, remaining - margin)))
            for uid, claim in claims.items()
        }
        for task in tasks.values():
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        fields = {"rpc": rpc, "claim": ",".join(claim.full_name for claim in claims.values())}
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=seconds)
        except asyncio.CancelledError:
            LOG.warning("request cancelled by kubelet, completing it", extra=fields)
            raise
        if not all(task.done() for task in tasks.values()):
            LOG.error("request timed out, completing it", extra={**fields, "duration_ms": milliseconds(seconds)})
        late = f"not completed after {seconds:.1f} s, and going on"
        return {uid: task.result() if task.done() else late for uid, task in tasks.items()}

    async def _outcome(self, rpc: Rpc, claim: ClaimReference, work: Awaitable[T]) -> T | str:
        """Return the result of the work for a claim, or its error, which is logged."""
        started = self._clock()
        try:
            result = await work
        except (OSError, PluginError) as error:
            problem = str(error)
        except Exception as error:
            fields = {"claim": claim.full_name, "uid": claim.uid}
            LOG.error("claim failed unexpectedly", extra=fields, exc_info=True)  # noqa: G201 - level
            problem = f"internal error: {type(error).__name__}: {error}"
        else:
            LOG.debug("request answered", extra={"rpc": rpc, "claim": claim.full_name})
            return result
        fields = {"rpc": rpc, "claim": claim.full_name, "uid": claim.uid, "error": problem}
        LOG.warning("claim failed", extra={**fields, "duration_ms": milliseconds(self._clock() - started)})
        return problem

    async def _watch_health(
        self, finished: asyncio.Event, _request: health_pb.NodeWatchResourcesRequest, _context: Context
    ) -> AsyncIterator[health_pb.NodeWatchResourcesResponse]:
        """Report the health of all prepared devices at once, after each change and periodically.

        A kubelet shows it in the status of pods (``allocatedResourcesStatus``).
        """
        while not finished.is_set():
            devices, changes = self._claims.health()
            now = int(time.time())
            yield health_pb.NodeWatchResourcesResponse(devices=[_report(device, now) for device in devices])
            await self._clock.wait(*changes, finished, timeout=self._timings.health_period)
            await self._clock.sleep(self._timings.quiet)  # changes come together


def _device(device: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_devices,
    )


def _report(device: DeviceHealth, now: int) -> health_pb.DeviceHealth:
    return health_pb.DeviceHealth(
        device=health_pb.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=health_pb.UNHEALTHY if device.problem else health_pb.HEALTHY,
        last_updated_time=now,
        health_check_timeout_seconds=HEALTH_TIMEOUT,
        message=device.problem[:MAX_MESSAGE_LENGTH],
    )
