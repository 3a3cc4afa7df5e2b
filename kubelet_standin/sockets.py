"""gRPC on unix sockets."""

from __future__ import annotations

import urllib.parse

import grpc


def socket_address(path: str) -> str:
    """Return the gRPC address of the socket at ``path``, a URI in which spaces and % are escaped."""
    return f"unix:{urllib.parse.quote(path)}"


def open_channel(path: str, *options: tuple[str, int]) -> grpc.aio.Channel:
    """Return a new gRPC channel to the socket at ``path``.

    The authority is set because C-core would send the %-encoded path of the socket. The channel has a subchannel pool
    of its own because each registration has its own connection, and because a connection that failed before would make
    the next channel wait for the end of its backoff.
    """
    own = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(socket_address(path), options=[*own, *options])
