"""The listening sockets of ``http``, which need nothing else of it: an address is taken before the plugin starts."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from aosp_plugin.framework.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

QUEUE_LENGTH = socket.SOMAXCONN
"""Connections that wait to be accepted. A client that finds the queue full retries after a second, and a flood of
connections would keep a probe from the queue. The kernel limits the length to net.core.somaxconn, 4,096 by default
since Linux 5.4 (net/core/sysctl_net_core.c; net/socket.c ``__sys_listen``)."""


def listen(address: tuple[str, int], beside: Collection[socket.socket] = ()) -> socket.socket:
    """Return a socket that listens on ``address``; its clients wait until a server accepts them.

    ``beside`` are sockets of this process whose addresses do not matter: one on all addresses of the host may have the
    same port. Raises ServiceError if the address is not available.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        with _sharing_ports(listener, *beside) if beside else contextlib.nullcontext():
            listener.bind(address)
            listener.listen(QUEUE_LENGTH)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {address[0]}:{address[1]}: {error}; set another listen address"
        raise ServiceError(message) from error
    return listener


@contextlib.contextmanager
def _sharing_ports(*sockets: socket.socket) -> Iterator[None]:
    """Let the sockets share a port inside the context, and no longer: a port must not be taken twice by accident."""
    try:
        for it in sockets:
            it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield
    finally:
        for it in sockets:
            it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
