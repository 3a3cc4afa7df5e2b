"""Keeps a DRA driver registered, and answers the kubelet's requests about claims, on one socket for everything.

The kubelet finds the socket in its directory plugins_registry by file events, and a kubelet that starts finds it by
reading the directory; nothing else tells a driver that the kubelet restarted. It calls GetInfo, registers the driver,
and calls NotifyRegistrationStatus (pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go).

No call shows the end of a kubelet: its connection to the driver may be idle, and gRPC closes it after half an hour. But
its podresources socket then refuses connections.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Literal, TypeVar, cast

import grpc

from aosp_plugin.framework.api import dra_health_pb2 as health_pb
from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.api import pluginregistration_pb2 as registration_pb
from aosp_plugin.framework.backend import shortened
from aosp_plugin.framework.dra.claim_records import ClaimReference
from aosp_plugin.framework.dra.claims import Claims, DeviceHealth
from aosp_plugin.framework.errors import KubeletDirectoryError, PluginError
from aosp_plugin.framework.file_events import Subscription
from aosp_plugin.framework.plugin_socket import Context, DirectoryView, Handlers
from aosp_plugin.framework.registration import Loss, Registration
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service.logs import milliseconds
from aosp_plugin.framework.sockets import SocketDirectory, listener
from aosp_plugin.framework.timing import Stop

LOG = logging.getLogger(__name__)

REGISTRATION = "pluginregistration.Registration"

SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The kubelet uses the first DRAPlugin in the driver's order that it knows, and its own favourite DRAResourceHealth
(pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go ``validateSupportedServices``, ``pickHealthService``)."""

_NAME_LENGTH = 20
"""Characters of the driver's name in the names of its sockets. With MicroK8s's directory, the longest one of a known
distribution, and the largest process ID, a path has 107 bytes."""

T = TypeVar("T")

CLAIM_SERVICES = ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin")
"""v1beta1 has the same messages, except for a field that this driver does not set."""

HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The messages of both are the same."""

DEADLINE = 45.0
"""Seconds that kubelets wait for an answer (pkg/kubelet/cm/dra/plugin/dra_plugin.go, defaultClientCallTimeout)."""

MARGIN = 1.0
"""Seconds before the deadline when a claim is answered for; a tenth of the deadline if that is shorter."""


HEALTH_TIMEOUT = 30
"""Seconds without a report after which the kubelet considers the health unknown: its default, too
(pkg/kubelet/cm/dra/healthinfo.go)."""

MAX_MESSAGE_LENGTH = 256
"""Characters of the reason why a device is unhealthy: the kubelet receives up to 4 MiB, so some 10,000 devices."""

Rpc = Literal["NodePrepareResources", "NodeUnprepareResources"]

HEALTH_PERIOD = 10.0
"""Seconds between two reports of the health of a driver's devices that does not change."""


class RegistryDirectory(SocketDirectory):
    """The kubelet's directory plugins_registry, and the names of one driver's sockets in it."""

    def __init__(self, path: str, driver: str) -> None:
        """``driver`` is the name of the driver."""
        super().__init__(path, shortened(driver, _NAME_LENGTH))


class KubeletService(Registration):
    """The kubelet's side of one DRA driver. Belongs to one event loop."""

    def __init__(
        self,
        driver: str,
        resource: str,
        registry_directory: str,
        claims: Claims,
        *,
        files: Subscription,
        stop: Stop,
        kubelet_socket: str = "",
        runtime: Runtime,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``. ``resource`` is the label of ``metrics``.

        ``kubelet_socket`` is a socket on which the kubelet listens; empty if there is none.
        """
        directory = RegistryDirectory(registry_directory, driver)
        super().__init__(directory, files, stop, name=f"{driver} registry", resource=resource, runtime=runtime)
        # Without an endpoint, the kubelet uses the socket on which it called GetInfo, under the path that it sees
        # (operation_generator.go): the path in the driver's container may be another one.
        self._info = registration_pb.PluginInfo(type="DRAPlugin", name=driver, supported_versions=SUPPORTED_VERSIONS)
        self._claims = claims
        self._kubelet_socket = kubelet_socket
        self._kubelet_listened = False
        self.first_registered = asyncio.Event()
        """Set when the kubelet has confirmed a registration for the first time."""
        self.restarted = asyncio.Event()
        """Set each time the kubelet begins to register the driver, as it does after a restart; the subscriber clears
        it."""

    def _services(self, endpoint: str) -> tuple[Handlers, Callable[[], None]]:
        finished = asyncio.Event()
        registration = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                partial(self._get_info, endpoint),
                registration_pb.InfoRequest.FromString,
                registration_pb.PluginInfo.SerializeToString,
            ),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                partial(self._notify, endpoint),
                registration_pb.RegistrationStatus.FromString,
                registration_pb.RegistrationStatusResponse.SerializeToString,
            ),
        }
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
        health = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                partial(self._watch_health, finished),
                health_pb.NodeWatchResourcesRequest.FromString,
                health_pb.NodeWatchResourcesResponse.SerializeToString,
            )
        }
        self._await_kubelet()
        services = [
            (REGISTRATION, registration),
            *((name, requests) for name in CLAIM_SERVICES),
            *((name, health) for name in HEALTH_SERVICES),
        ]
        return [grpc.method_handlers_generic_handler(name, methods) for name, methods in services], finished.set

    async def _get_info(
        self, endpoint: str, _request: registration_pb.InfoRequest, _context: Context
    ) -> registration_pb.PluginInfo:
        if endpoint == self.endpoint:  # otherwise, the socket was given up
            self._await_kubelet()
            LOG.info("kubelet requests registration", extra={"endpoint": self.endpoint})
            self.restarted.set()
        return self._info

    async def _notify(
        self, endpoint: str, status: registration_pb.RegistrationStatus, _context: Context
    ) -> registration_pb.RegistrationStatusResponse:
        if endpoint == self.endpoint:
            if status.plugin_registered:
                self._completed()
                self.first_registered.set()
            else:
                # The name of the socket differs each time. Without it, a refusal that lasts is logged once.
                error = (status.error or "the kubelet gave no reason").replace(f"/{endpoint}", "")
                self._failed(f"the kubelet refuses the driver: {error}")
                self._await_kubelet()
            self._files.changed.set()
        return registration_pb.RegistrationStatusResponse()

    def _progress(self, _view: DirectoryView) -> Loss | None:
        is_overdue = self._deadline is not None and self._clock() >= self._deadline
        return Loss.NOT_REGISTERED if is_overdue else None

    async def _unavailable(self) -> str:
        if reason := await super()._unavailable():
            return reason
        if self._claims.is_served_elsewhere:
            return "another process serves the driver"
        try:
            await self._monitor.run("use", self._directory.check)
        except KubeletDirectoryError as error:
            return str(error)
        return ""

    @property
    def _interval(self) -> float:
        return min(super()._interval, self._timings.recheck)

    async def _look(self) -> None:
        """Note the end of the kubelet. A socket on which it has never listened may be left from a former kubelet."""
        if not self._kubelet_socket:
            return
        if await self._monitor.run("connect to a socket beside", partial(listener, self._kubelet_socket)) is not None:
            self._kubelet_listened = self.registered
        elif self._kubelet_listened and not self._stop.is_set():
            self._unregistered()
            self._await_kubelet()  # it finds the driver's socket when it starts
            self._waits(f"it does not listen on {self._kubelet_socket}")

    def _await_kubelet(self) -> None:
        """Give the kubelet time to register the driver, unless it is registered."""
        if not self.registered:
            self._deadline = self._clock() + self._timings.patience

    def _unregistered(self) -> None:
        self._kubelet_listened = False
        super()._unregistered()

    async def _prepare(
        self, request: pb.NodePrepareResourcesRequest, context: Context
    ) -> pb.NodePrepareResourcesResponse:
        results = await self._answer("NodePrepareResources", request.claims, self._claims.prepare, context)
        return pb.NodePrepareResourcesResponse(
            claims={
                uid: pb.NodePrepareResourceResponse(error=result)
                if isinstance(result, str)
                else pb.NodePrepareResourceResponse(devices=result)
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
        """Return the result or the error of exactly these claims, before the deadline of the request.

        The kubelet passes all claims of a pod in one request, and refuses an answer with other claims
        (pkg/kubelet/cm/dra/manager.go). What a claim does on the host goes on after the answer, and if the kubelet
        cancels the request: the kubelet asks again.
        """
        claims = {claim.uid: ClaimReference(claim.namespace, claim.name, claim.uid) for claim in requested}
        left = cast("float | None", context.time_remaining())  # gRPC's annotation lacks None
        remaining = DEADLINE if left is None else min(left, DEADLINE)
        seconds = remaining - min(MARGIN, remaining / 10)
        results = await asyncio.gather(*(self._outcome(rpc, claim, handle, seconds) for claim in claims.values()))
        return dict(zip(claims, results, strict=True))

    async def _outcome(
        self, rpc: Rpc, claim: ClaimReference, handle: Callable[[ClaimReference, float], Awaitable[T]], seconds: float
    ) -> T | str:
        """Return the result of the work for a claim, or its error, which is logged."""
        started = self._clock()
        try:
            async with asyncio.timeout(seconds):
                result = await handle(claim, seconds - min(MARGIN, seconds / 10))
        except TimeoutError:
            problem = f"not completed after {seconds:.1f} s"
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
            await self._clock.wait(*changes, finished, timeout=HEALTH_PERIOD)
            await self._clock.sleep(self._timings.quiet)  # several changes often come together


def _report(device: DeviceHealth, now: int) -> health_pb.DeviceHealth:
    return health_pb.DeviceHealth(
        device=health_pb.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=health_pb.UNHEALTHY if device.problem else health_pb.HEALTHY,
        last_updated_time=now,
        health_check_timeout_seconds=HEALTH_TIMEOUT,
        message=device.problem[:MAX_MESSAGE_LENGTH],
    )
