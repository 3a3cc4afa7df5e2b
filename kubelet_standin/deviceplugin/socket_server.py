"""The listener on kubelet.sock: the Registration service, or a server that does not speak gRPC."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from kubelet_standin.api import deviceplugin_pb2_grpc as rpc
from kubelet_standin.deviceplugin.directory import SOCKET_NAME, alias
from kubelet_standin.sockets import socket_address

GARBAGE = b"220 this is not gRPC\r\n" * 8


async def _send_garbage(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(GARBAGE)
    writer.close()


async def listen(directory: str, service: rpc.RegistrationServicer, *, garbage: bool) -> Callable[[], Awaitable[None]]:
    """Listen on kubelet.sock in ``directory``; the file must not exist.

    Returns a function that closes all connections and stops listening. The socket file stays.
    """
    with alias(directory) as name:
        path = f"{name}/{SOCKET_NAME}"
        if garbage:
            garbage_server = await asyncio.start_unix_server(_send_garbage, path)

            async def stop() -> None:
                garbage_server.close()
                await garbage_server.wait_closed()

            return stop
        server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(service, server)
        server.add_insecure_port(socket_address(path))
        await server.start()
        return lambda: server.stop(None)
