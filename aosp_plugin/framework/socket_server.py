"""A gRPC server on a socket of its own, in a directory that the kubelet shares with its plugins."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Protocol

import grpc

from aosp_plugin.framework.errors import RegistrationFailedError
from aosp_plugin.framework.sockets import check_descriptors, socket_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from aosp_plugin.framework.directory_monitor import DirectoryMonitor

RECEIVE_LIMIT = 64 * 1024 * 1024
"""Bytes of a request. GetPreferredAllocation carries every free ID; gRPC's default of 4 MiB suffices for 220,000."""

OPTIONS = (("grpc.max_receive_message_length", RECEIVE_LIMIT),)
"""The options of each server."""

REMOVE_TIMEOUT = 0.2
"""Seconds for the removal of the socket."""

_STOPPING: set[asyncio.Task[None]] = set()
"""The ends of servers, so that none is dropped: the destructor of a server stops it, too."""


class SocketServer(Protocol):
    """A gRPC server. For the event loop."""

    def bind(self, address: str) -> None:
        """Create the socket at an address of gRPC. Raises RuntimeError."""

    async def start(self) -> None:
        """Accept connections. Raises RuntimeError."""

    async def stop(self, grace: float) -> None:
        """Accept no further request, give pending ones ``grace`` seconds, and remove the socket."""


class AioServer:
    """A ``SocketServer`` whose handlers are coroutines."""

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler[bytes, bytes]]) -> None:
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers(tuple(handlers))
        self._started = False

    def bind(self, address: str) -> None:
        """Create the socket. Raises RuntimeError."""
        self._server.add_insecure_port(address)

    async def start(self) -> None:
        """Accept connections."""
        self._started = True
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Stop in the event loop."""
        if not self._started:
            await self.start()  # otherwise gRPC would keep the socket
        await self._server.stop(grace)


@contextlib.asynccontextmanager
async def serving(
    make_server: Callable[[], SocketServer],
    path: str,
    monitor: DirectoryMonitor,
    grace: float,
    *,
    finish: Callable[[], None],
    hidden: bool = False,
) -> AsyncIterator[None]:
    """Serve on a new socket at ``path`` inside the context; pending requests then have ``grace`` seconds.

    ``make_server`` may raise OSError and RuntimeError. ``finish`` is called at the end and must end all streams. With
    ``hidden``, the socket appears only when the server answers: until then, its name begins with a dot.

    The event loop waits while gRPC creates the socket, and an ``AioServer`` removes it there: the only accesses to
    files of the host. If the directory hangs, the server stops when it answers again. Raises RegistrationFailedError if
    the server cannot start, or the directory fails.
    """
    bound = os.path.join(os.path.dirname(path), "." + os.path.basename(path)) if hidden else path
    try:
        check_descriptors()
        server = make_server()
        server.bind(socket_address(bound))
    except (OSError, RuntimeError) as error:
        # Without the name of the socket, which differs each time: a failure that lasts is logged once.
        directory = os.path.dirname(path)
        cause = str(error).replace(socket_address(bound), directory)
        raise RegistrationFailedError(f"cannot listen in {directory}: {cause}") from error
    try:
        await monitor.restrict(bound)
        await _start(server)
        if hidden:
            await monitor.show(bound, path)
        yield
    finally:
        finish()
        stopping = asyncio.create_task(_stop(server, path, monitor, grace, hidden=hidden))
        _STOPPING.add(stopping)
        stopping.add_done_callback(_STOPPING.discard)
        await asyncio.wait({stopping}, timeout=grace + REMOVE_TIMEOUT)


async def _start(server: SocketServer) -> None:
    try:
        await server.start()
    except RuntimeError as error:
        raise RegistrationFailedError(f"cannot start a gRPC server: {error}") from error


async def _stop(server: SocketServer, path: str, monitor: DirectoryMonitor, grace: float, *, hidden: bool) -> None:
    """Stop the server when its directory answers. gRPC removes a socket only if it has the name that gRPC gave it."""
    if hidden:
        await monitor.remove(path)
    else:
        await monitor.answers(path)
    await server.stop(grace)
