"""The address that an HTTP server listens on. It is bound before the plugin starts; ``http`` is imported later."""

import re
import socket

from aosp_plugin.framework.errors import ServiceError

QUEUE_LENGTH = socket.SOMAXCONN
"""Connections that wait to be accepted. A client that finds the queue full retries after a second, and a flood of
connections would keep a probe from the queue. The kernel limits the length to net.core.somaxconn, 4,096 by default
since Linux 5.4 (net/core/sysctl_net_core.c; net/socket.c ``__sys_listen``)."""


def listen_address(text: str) -> tuple[str, int] | None:
    """Parse ``host:port`` or ``[IPv6]:port``; None if ``text`` is empty. Raises ValueError."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or re.fullmatch(r"[0-9]{1,5}", port) is None or int(port) > 65535:  # noqa: PLR2004 - 16 bits
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def joined_address(address: tuple[str, int]) -> str:
    """Return the text of an address, as in a URL."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether the host of a listen address is reachable from this network namespace only."""
    if host.lower() == "localhost":
        return True
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        address = socket.inet_pton(family, host)
    except OSError:
        return False
    return address[0] == 127 if family is socket.AF_INET else address == b"\0" * 15 + b"\1"  # noqa: PLR2004 - 127.0.0.0/8


def conflicts(address: tuple[str, int], other: tuple[str, int]) -> bool:
    """Return whether ``address`` is a wildcard that has the port of ``other`` as well, so that only one can listen.

    A server on ``::`` accepts connections by IPv4 too. Port 0 stands for any free port.
    """
    (host, port), (other_host, other_port) = address, other
    if port != other_port or port == 0 or host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not listened on
        return False
    return host == "::" or ":" not in other_host


def listen(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens on ``address``; its clients wait until a server accepts them.

    Raises ServiceError if the address is not available.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(QUEUE_LENGTH)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {address[0]}:{address[1]}: {error}; set another listen address"
        raise ServiceError(message) from error
    return listener
