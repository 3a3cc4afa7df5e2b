"""Keeps a DRA driver registered: it is called by the kubelet, on one socket for everything.

The kubelet finds the socket in its directory plugins_registry by file events, and a kubelet that starts finds it by
reading the directory; nothing else tells a driver that the kubelet restarted. It calls GetInfo, registers the driver,
and calls NotifyRegistrationStatus (pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go).

The end of a kubelet shows in no call: its connection to the driver may be idle, and gRPC closes it after half an hour.
Its podresources socket, which then refuses connections, shows it at no cost.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import grpc

from aosp_plugin.framework.api import pluginregistration_pb2 as pb
from aosp_plugin.framework.dra.claim_servicer import ClaimServicer
from aosp_plugin.framework.dra.claims import Claims
from aosp_plugin.framework.errors import KubeletDirectoryError
from aosp_plugin.framework.events.file_events import Subscription
from aosp_plugin.framework.observer import NULL_OBSERVER, Observer
from aosp_plugin.framework.registration import Context, Handlers, Loss, Registration
from aosp_plugin.framework.sockets import DirectoryView, SocketDirectory, listener, socket_stem
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Stop, Timings

LOG = logging.getLogger(__name__)

REGISTRATION = "pluginregistration.Registration"

SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The kubelet uses the first DRAPlugin in the driver's order that it knows, and its own favourite DRAResourceHealth
(pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go ``validateSupportedServices``, ``pickHealthService``)."""


class KubeletService(Registration):
    """The kubelet's side of one DRA driver. Belongs to one event loop."""

    def __init__(
        self,
        driver: str,
        registry_directory: str,
        claims: Claims,
        *,
        files: Subscription,
        stop: Stop,
        kubelet_socket: str = "",
        observer: Observer = NULL_OBSERVER,
        timings: Timings = DEFAULT,
        clock: Clock = CLOCK,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``.

        ``kubelet_socket`` is a socket on which the kubelet listens; empty if there is none.
        """
        directory = SocketDirectory(registry_directory, socket_stem(driver))
        name = f"{driver} registry"
        super().__init__(directory, files, stop, name=name, observer=observer, timings=timings, clock=clock)
        # Without an endpoint, the kubelet uses the socket on which it called GetInfo, under the path that it sees
        # (operation_generator.go): the path in the driver's container may be another one.
        self._info = pb.PluginInfo(type="DRAPlugin", name=driver, supported_versions=SUPPORTED_VERSIONS)
        self._claims = ClaimServicer(claims, timings, clock)
        self._kubelet_socket = kubelet_socket
        self._kubelet_listened = False
        self.first_registered = asyncio.Event()
        """Set when the kubelet has confirmed a registration for the first time."""
        self.restarted = asyncio.Event()
        """Set each time the kubelet begins to register the driver, as it does after a restart; the subscriber clears
        it."""

    async def close(self) -> None:
        """End the work for claims, the file events and the worker thread, after ``run`` or instead of it."""
        await self._claims.close(self._stop.remaining / 2)
        await super().close()

    def _services(self, endpoint: str) -> tuple[Handlers, Callable[[], None]]:
        registration = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                partial(self._get_info, endpoint), pb.InfoRequest.FromString, pb.PluginInfo.SerializeToString
            ),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                partial(self._notify, endpoint),
                pb.RegistrationStatus.FromString,
                pb.RegistrationStatusResponse.SerializeToString,
            ),
        }
        finished = asyncio.Event()
        self._await_kubelet()
        handlers = [grpc.method_handlers_generic_handler(REGISTRATION, registration)]
        return [*handlers, *self._claims.handlers(finished)], finished.set

    async def _get_info(self, endpoint: str, _request: pb.InfoRequest, _context: Context) -> pb.PluginInfo:
        if endpoint == self.endpoint:  # otherwise, the socket was given up
            self._await_kubelet()
            LOG.info("kubelet requests registration", extra={"endpoint": self.endpoint})
            self.restarted.set()
        return self._info

    async def _notify(
        self, endpoint: str, status: pb.RegistrationStatus, _context: Context
    ) -> pb.RegistrationStatusResponse:
        if endpoint == self.endpoint:
            if status.plugin_registered:
                self._completed()
                self.first_registered.set()
            else:
                # Without the name of the socket, which differs each time: a refusal that lasts is logged once.
                error = (status.error or "the kubelet gave no reason").replace(f"/{endpoint}", "")
                self._failed(f"the kubelet refuses the driver: {error}")
                self._await_kubelet()
            self._files.changed.set()
        return pb.RegistrationStatusResponse()

    def _progress(self, _view: DirectoryView) -> Loss | None:
        is_overdue = self._deadline is not None and self._clock() >= self._deadline
        return Loss.NOT_REGISTERED if is_overdue else None

    async def _unavailable(self) -> str:
        if reason := await super()._unavailable():
            return reason
        try:
            await self._monitor.run("use", self._directory.check)
        except KubeletDirectoryError as error:
            return str(error)
        return ""

    @property
    def _interval(self) -> float:
        return min(super()._interval, self._timings.recheck)

    async def _look(self) -> None:
        """Note the end of the kubelet. A socket on which it has never listened may be left from another one."""
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
