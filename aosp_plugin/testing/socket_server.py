"""Listening on kubelet.sock: with the Registration service, or with something that is no gRPC at all."""

from __future__ import annotations

import asyncio
from typing import Protocol

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2_grpc as rpc
from aosp_plugin.testing.directory import SOCKET_NAME, alias

GARBAGE = b"220 this is no gRPC\r\n" * 8


class Listener(Protocol):
    """Something that listens on kubelet.sock."""

    async def stop(self) -> None:
        """Close every connection and listen no longer. The socket file stays."""


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


async def _talk_garbage(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(GARBAGE)
    writer.close()


async def listen(directory: str, service: rpc.RegistrationServicer, *, garbage: bool) -> Listener:
    """Listen on kubelet.sock in ``directory``, where no such file may be."""
    with alias(directory) as name:
        path = f"{name}/{SOCKET_NAME}"
        if garbage:
            return _Garbage(await asyncio.start_unix_server(_talk_garbage, path))
        server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(service, server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        return _Grpc(server)
