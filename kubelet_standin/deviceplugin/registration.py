"""kubelet.sock: the Registration service and the record of its requests, or a server that does not speak gRPC."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import grpc

from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.api import deviceplugin_pb2_grpc as rpc
from kubelet_standin.deviceplugin.directory import SOCKET_NAME, PluginDirectory
from kubelet_standin.deviceplugin.faults import Faults
from kubelet_standin.events import Emit
from kubelet_standin.sockets import socket_address

SUPPORTED_VERSION: Final = "v1beta1"
PENDING: Final = "pending"
ACCEPTED: Final = "ok"
CANCELLED: Final = "cancelled"

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RESOURCE: Final = re.compile(
    r"(?!requests\.|.*kubernetes\.io/)(?=[^/]{1,244}/[^/]{1,63}$)"
    rf"{_LABEL}(\.{_LABEL})*/([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
)
"""A name in a domain outside kubernetes.io that is still a qualified name after a quota has put ``requests.`` in front,
which leaves 244 characters for the domain (pkg/apis/core/v1/helper/helpers.go ``IsExtendedResourceName``)."""


@dataclass
class Registration:
    """One Register request and its outcome."""

    version: str
    endpoint: str
    resource_name: str
    outcome: str = PENDING
    """``pending``, ``ok``, ``cancelled`` (the caller gave up or the kubelet stopped), or the error text."""


def registration_error(version: str, resource_name: str) -> str | None:
    """Return the kubelet's error text for an invalid request, or None for a valid one.

    The version is checked first (pkg/kubelet/cm/devicemanager/types.go and manager.go, Register).
    """
    if version != SUPPORTED_VERSION:
        return (
            f'requested API version "{version}" is not supported by kubelet. '
            f'Supported version is ["{SUPPORTED_VERSION}"]'
        )
    if not _RESOURCE.fullmatch(resource_name):
        return f'the ResourceName "{resource_name}" is invalid'
    return None


class RegistrationService(rpc.RegistrationServicer):
    """Answers Register: applies the faults, then the kubelet's checks, then ``accept``."""

    def __init__(
        self,
        faults: Faults,
        registrations: list[Registration],
        accept: Callable[[Registration], Awaitable[str | None]],
        *,
        emit: Emit,
        notify: Callable[[], None],
    ) -> None:
        self._faults = faults
        self._registrations = registrations
        self._accept = accept
        self._emit = emit
        self._notify = notify

    async def Register(  # noqa: N802 - the generated base is for both kinds of server
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        """Answer Empty, or UNKNOWN with the kubelet's text, like a Go error without a status."""
        registration = Registration(request.version, request.endpoint, request.resource_name)
        plugin = {"resource": registration.resource_name, "endpoint": registration.endpoint}
        self._registrations.append(registration)
        self._notify()
        try:
            error = await self._check(registration)
        except asyncio.CancelledError:
            registration.outcome = CANCELLED
            self._emit("registration-cancelled", **plugin)
            raise
        registration.outcome = error or ACCEPTED
        if error:
            self._emit("plugin-refused", **plugin, reason=error)
            await context.abort(grpc.StatusCode.UNKNOWN, error)
        self._emit("plugin-registered", **plugin)
        return pb.Empty()

    async def _check(self, registration: Registration) -> str | None:
        await self._faults.delay_register()
        if self._faults.refuse_register is not None:
            return self._faults.refuse_register
        error = registration_error(registration.version, registration.resource_name)
        return error if error is not None else await self._accept(registration)


GARBAGE = b"220 this is not gRPC\r\n" * 8


async def _send_garbage(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(GARBAGE)
    writer.close()


async def listen(
    directory: PluginDirectory, service: rpc.RegistrationServicer, *, garbage: bool
) -> Callable[[], Awaitable[None]]:
    """Listen on kubelet.sock in ``directory``; the file must not exist.

    Returns a function that closes all connections and stops listening. The socket file stays.
    """
    with directory.alias() as name:
        path = f"{name}/{SOCKET_NAME}"
        if garbage:
            garbage_server = await asyncio.start_unix_server(_send_garbage, path)

            async def stop() -> None:
                garbage_server.close()
                await garbage_server.wait_closed()

            return stop
        server = directory.server()
        rpc.add_RegistrationServicer_to_server(service, server)
        server.add_insecure_port(socket_address(path))
        await server.start()
        return lambda: server.stop(None)
