"""Registration with the kubelet's plugin watcher: the directory plugins_registry, and the service Registration.

The kubelet calls GetInfo on each new socket in the directory, and on each one that exists when it starts. It registers
the driver and calls NotifyRegistrationStatus (pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.api import pluginregistration_pb2 as pb
from aosp_plugin.framework.dra.names import socket_stem
from aosp_plugin.framework.sockets import SocketDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    Context = grpc.aio.ServicerContext[bytes, bytes]

SERVICE = "pluginregistration.Registration"

PLUGIN_TYPE = "DRAPlugin"

SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The kubelet uses the first DRAPlugin in the driver's order that it knows, and its own favourite DRAResourceHealth
(pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go ``validateSupportedServices``, ``pickHealthService``)."""


class RegistryDirectory(SocketDirectory):
    """The kubelet's directory plugins_registry, and the names of one driver's sockets in it."""

    def __init__(self, path: str, driver: str) -> None:
        """``driver`` is the name of the driver; the names of its sockets begin with its ``socket_stem``."""
        super().__init__(path, socket_stem(driver))


class RegistrationServicer:
    """The service Registration of one socket."""

    def __init__(self, driver: str, requested: Callable[[], None], answered: Callable[[str | None], None]) -> None:
        """Call ``requested`` at each GetInfo, and ``answered`` at each NotifyRegistrationStatus.

        ``answered`` gets the reason why the kubelet refuses the driver, or None if it has registered the driver.
        """
        # Without an endpoint, the kubelet uses the socket on which it called GetInfo, under the path that it sees
        # (operation_generator.go): the path in the driver's container may be another one.
        self._info = pb.PluginInfo(type=PLUGIN_TYPE, name=driver, supported_versions=SUPPORTED_VERSIONS)
        self._requested = requested
        self._answered = answered

    def handler(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return the handler for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    self._get_info, pb.InfoRequest.FromString, pb.PluginInfo.SerializeToString
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self._notify, pb.RegistrationStatus.FromString, pb.RegistrationStatusResponse.SerializeToString
                ),
            },
        )

    async def _get_info(self, _request: pb.InfoRequest, _context: Context) -> pb.PluginInfo:
        self._requested()
        return self._info

    async def _notify(self, status: pb.RegistrationStatus, _context: Context) -> pb.RegistrationStatusResponse:
        self._answered(None if status.plugin_registered else status.error or "the kubelet gave no reason")
        return pb.RegistrationStatusResponse()
