"""The address that an HTTP server listens on."""

from __future__ import annotations

import re


def listen_address(text: str) -> tuple[str, int] | None:
    """Parse ``host:port`` or ``[IPv6]:port``; None if ``text`` is empty. Raises ValueError."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or re.fullmatch(r"[0-9]{1,5}", port) is None or int(port) > 65535:  # noqa: PLR2004 - 16 bits
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
