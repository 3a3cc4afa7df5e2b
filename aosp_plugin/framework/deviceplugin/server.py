"""A gRPC server on one socket, as each registration has one. For how long, and with which kubelet, others decide."""

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
"""Bytes of a request. GetPreferredAllocation carries every free ID, and gRPC's default of 4 MiB ends at 220,000."""

SOCKET_MODE = 0o600
"""For the kubelet alone, which is root as the plugin is."""


@contextlib.asynccontextmanager
async def serving(servicer: Servicer, path: str, patience: float) -> AsyncIterator[None]:
    """Serve on a new socket at ``path`` while the context lasts; requests under way then have ``patience`` seconds.

    Raises RegistrationFailedError where that can't begin.
    """
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", RECEIVE_LIMIT)])
    server.add_generic_rpc_handlers((servicer.handler(),))
    try:
        server.add_insecure_port(socket_address(path))
    except RuntimeError as error:
        raise RegistrationFailedError(f"can't serve at {path}: {error}") from error
    try:
        with contextlib.suppress(FileNotFoundError):  # swept by a kubelet that starts: the first sign to be found
            os.chmod(path, SOCKET_MODE)
        await server.start()
        yield
    finally:
        servicer.finish()
        await server.stop(patience)  # removes the socket, too
