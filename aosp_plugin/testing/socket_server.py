"""The listener on kubelet.sock: the Registration service, or a server that does not speak gRPC."""

from __future__ import annotations

import asyncio
from typing import Protocol

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2_grpc as rpc
from aosp_plugin.testing.directory import SOCKET_NAME, alias

GARBAGE = b"220 this is not gRPC\r\n" * 8


class Listener(Protocol):
    """A server on kubelet.sock."""

    async def stop(self) -> None:
        """Close all connections and stop listening. The socket file stays."""


class _Grpc:
    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    async def stop(self) -> None:
        await self._server.stop(None)


class _Garbage:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()


async def _send_garbage(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(GARBAGE)
    writer.close()


async def listen(directory: str, service: rpc.RegistrationServicer, *, garbage: bool) -> Listener:
    """Listen on kubelet.sock in ``directory``; the file must not exist."""
    with alias(directory) as name:
        path = f"{name}/{SOCKET_NAME}"
        if garbage:
            return _Garbage(await asyncio.start_unix_server(_send_garbage, path))
        server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(service, server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        return _Grpc(server)
