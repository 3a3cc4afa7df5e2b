"""Telling systemd how the plugin is, where it runs as a service of Type=notify: sd_notify(3), without its library.

Nothing is told where systemd did not ask, which it does by environment variables. What is wrong with the plugin is the
callers' matter.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import wait_any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

LOG = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at how the plugin is."""


async def tell(
    unready: Callable[[], Iterable[str]],
    unhealthy: Callable[[], Iterable[str]],
    stop: asyncio.Event,
    environment: Mapping[str, str] = os.environ,
    interval: float = INTERVAL,
) -> None:
    """Tell until ``stop`` is set: READY=1 once ``unready`` says nothing, and as the status what it says.

    WATCHDOG=1 goes out while ``unhealthy`` says nothing, and is missed where the event loop is stuck, which ends and
    restarts the service; STOPPING=1 at the end. Empty texts count as nothing. Returns at once where nobody asked.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    patience = watchdog(environment, os.getpid())
    pause = between_looks(interval, patience)
    status, ready = None, False
    try:
        while not stop.is_set():
            problem = _joined(unready())
            beat = ["WATCHDOG=1"] if patience and not _joined(unhealthy()) else []
            begun = ["READY=1"] if not (ready or problem) else []
            news = [f"STATUS={problem or 'registered'}"] if problem != status else []
            if _send(address, [*begun, *news, *beat]):
                status, ready = problem, ready or not problem
            await wait_any(stop, timeout=pause)
    finally:
        if stop.is_set():
            _send(address, ["STOPPING=1"])


def watchdog(environment: Mapping[str, str], pid: int) -> float:
    """Return the seconds within which systemd wants a sign of life; 0 where it wants none of this process."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0


def between_looks(interval: float, patience: float) -> float:
    """Return the seconds from one look to the next: half of systemd's patience at the most, as sd_notify(3) advises."""
    return min(interval, patience / 2) if patience else interval


def _joined(problems: Iterable[str]) -> str:
    return " ".join("; ".join(problem for problem in problems if problem).split())


def _send(address: str, lines: list[str]) -> bool:
    """Send without waiting, and say whether that worked; "@" begins the name of an abstract socket."""
    path = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(0.0)
        try:
            if lines:
                sender.sendto("\n".join(lines).encode(), path)
        except OSError as error:
            LOG.debug("systemd can't be told", extra={"path": address, "error": str(error)})
            return False
    return True
