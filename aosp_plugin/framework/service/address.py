"""The address that an HTTP server listens on."""

from __future__ import annotations

import re
import socket


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
