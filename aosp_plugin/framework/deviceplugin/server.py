"""The gRPC server of one registration, on a socket of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.deviceplugin.kubelet_client import check_descriptors, socket_address
from aosp_plugin.framework.errors import RegistrationFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aosp_plugin.framework.deviceplugin.directory_monitor import DirectoryMonitor
    from aosp_plugin.framework.deviceplugin.servicer import Servicer

RECEIVE_LIMIT = 64 * 1024 * 1024
"""Bytes of a request. GetPreferredAllocation carries every free ID; gRPC's default of 4 MiB suffices for 220,000."""

REMOVE_TIMEOUT = 0.2
"""Seconds for the removal of the socket."""

_STOPPING: set[asyncio.Task[None]] = set()
"""The ends of servers, so that none is dropped: the destructor of a server stops it, too."""


@contextlib.asynccontextmanager
async def serving(servicer: Servicer, path: str, monitor: DirectoryMonitor, grace: float) -> AsyncIterator[None]:
    """Serve on a new socket at ``path`` inside the context; pending requests then have ``grace`` seconds.

    gRPC creates and removes the socket in the event loop, the only accesses to files of the host there. If the
    directory hangs, the server stops when it answers again. Raises RegistrationFailedError if the server cannot start.
    """
    try:
        check_descriptors()
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", RECEIVE_LIMIT)])
        server.add_generic_rpc_handlers((servicer.handler(),))
        server.add_insecure_port(socket_address(path))
    except (OSError, RuntimeError) as error:
        # Without the name of the socket, which differs each time: a failure that lasts is logged once.
        directory = os.path.dirname(path)
        cause = str(error).replace(socket_address(path), directory)
        raise RegistrationFailedError(f"cannot listen in {directory}: {cause}") from error
    try:
        await monitor.restrict(path)
        await server.start()
        yield
    finally:
        servicer.finish()
        stopping = asyncio.create_task(_stop(server, path, monitor, grace))
        _STOPPING.add(stopping)
        stopping.add_done_callback(_STOPPING.discard)
        await asyncio.wait({stopping}, timeout=grace + REMOVE_TIMEOUT)


async def _stop(server: grpc.aio.Server, path: str, monitor: DirectoryMonitor, grace: float) -> None:
    """Stop the server when its directory answers."""
    await monitor.answers(path)
    await server.stop(grace)
