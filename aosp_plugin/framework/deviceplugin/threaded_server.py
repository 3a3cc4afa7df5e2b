"""A gRPC server that answers in threads, independent of the event loop."""

from __future__ import annotations

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
        self._name = name
        self._threads = RequestThreads(f"{name} requests")
        self._server = grpc.server(
            self._threads,  # type: ignore[arg-type] # any Executor: gRPC calls submit only
            handlers=list(handlers),
            options=OPTIONS,
        )
        self._started = False

    def bind(self, address: str) -> None:
        """Create the socket. Raises RuntimeError."""
        self._server.add_insecure_port(address)

    async def start(self) -> None:
        """Accept connections."""
        self._started = True
        self._server.start()

    async def stop(self, grace: float) -> None:
        """Stop in a thread, because gRPC waits there, and removes the socket."""
        if not self._started:
            await self.start()  # otherwise gRPC would keep the socket
        worker = Worker(f"{self._name} server")
        try:
            await worker.run(lambda: self._server.stop(grace).wait(), label="end of the gRPC server")
        finally:
            worker.close(self._threads.shutdown)
