"""A gRPC server that answers in threads, independent of the event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.deviceplugin.request_threads import RequestThreads
from aosp_plugin.framework.socket_server import OPTIONS
from aosp_plugin.framework.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence


class ThreadedServer:
    """A ``SocketServer`` whose handlers are functions. Each request has a thread while it runs.

    A coroutine would have to be scheduled in the event loop for each request: its p50 is a third higher, and a busy
    event loop delays it.
    """

    def __init__(self, name: str, handlers: Sequence[grpc.GenericRpcHandler[bytes, bytes]]) -> None:
        """``name`` is the name of the threads."""
        self._threads = RequestThreads(f"{name} requests")
        self._server = grpc.server(
            self._threads,  # type: ignore[arg-type] # any Executor: gRPC calls submit only
            handlers=list(handlers),
            options=OPTIONS,
        )
        self._stopping = Worker(f"{name} server")
        self._started = False

    def bind(self, address: str) -> None:
        """Create the socket, in the thread that will stop the server: later there may be no free one.

        Raises RuntimeError.
        """
        try:
            self._stopping.call(lambda: self._server.add_insecure_port(address), label="creation of a socket")
        except RuntimeError:
            self._stopping.close()
            raise

    async def start(self) -> None:
        """Accept connections. Raises RuntimeError if there is no free thread."""
        self._started = True
        self._server.start()

    async def stop(self, grace: float) -> None:
        """Stop in a thread, because gRPC waits there, and removes the socket."""
        try:
            if not self._started:
                await self.start()  # otherwise gRPC would keep the socket
            await self._stopping.run(partial(self._stop, grace), label="end of the gRPC server")
        finally:
            self._stopping.close(self._threads.shutdown)

    def _stop(self, grace: float) -> None:
        try:
            self._server.stop(grace).wait()
        except RuntimeError:  # there is no free thread, in which gRPC waits for the end of ``grace``
            self._server.stop(None)
