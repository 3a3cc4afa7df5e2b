"""The gRPC server of one registration, on a socket of its own."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.deviceplugin.kubelet_client import socket_address
from aosp_plugin.framework.errors import RegistrationFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aosp_plugin.framework.deviceplugin.servicer import Servicer

RECEIVE_LIMIT = 64 * 1024 * 1024
"""Bytes of a request. GetPreferredAllocation carries every free ID; gRPC's default of 4 MiB suffices for 220,000."""

SOCKET_MODE = 0o600
"""For the kubelet alone, which runs as root like the plugin."""


@contextlib.asynccontextmanager
async def serving(servicer: Servicer, path: str, grace: float) -> AsyncIterator[None]:
    """Serve on a new socket at ``path`` inside the context; pending requests then have ``grace`` seconds.

    Raises RegistrationFailedError if the server cannot start.
    """
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", RECEIVE_LIMIT)])
    server.add_generic_rpc_handlers((servicer.handler(),))
    try:
        server.add_insecure_port(socket_address(path))
    except RuntimeError as error:
        raise RegistrationFailedError(f"cannot listen on {path}: {error}") from error
    try:
        with contextlib.suppress(FileNotFoundError):  # a kubelet that starts removed it, which the supervisor detects
            os.chmod(path, SOCKET_MODE)
        await server.start()
        yield
    finally:
        servicer.finish()
        await server.stop(grace)  # removes the socket
