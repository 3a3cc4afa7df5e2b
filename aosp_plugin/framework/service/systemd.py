"""Notifies systemd of the plugin's state if it runs as a service of Type=notify: sd_notify(3), without its library.

systemd requests notifications through environment variables. Without them nothing is sent.
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
"""Seconds between two checks of the plugin's state."""


async def notify(
    unready: Callable[[], Iterable[str]],
    unhealthy: Callable[[], Iterable[str]],
    stop: asyncio.Event,
    environment: Mapping[str, str] = os.environ,
    interval: float = INTERVAL,
) -> None:
    """Notify systemd until ``stop`` is set; return at once if it requests no notifications.

    Sends READY=1 once ``unready`` returns no problem, and its problems as the status. Sends WATCHDOG=1 while
    ``unhealthy`` returns no problem; a stuck event loop misses it, and systemd restarts the service. Sends STOPPING=1
    at the end. Empty texts do not count as problems.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    timeout = watchdog_timeout(environment, os.getpid())
    pause = check_interval(interval, timeout)
    sent_status, ready = None, False
    try:
        while not stop.is_set():
            problem = _join(unready())
            lines = ["READY=1"] if not (ready or problem) else []
            lines += [f"STATUS={problem or 'registered'}"] if problem != sent_status else []
            lines += ["WATCHDOG=1"] if timeout and not _join(unhealthy()) else []
            if _send(address, lines):
                sent_status, ready = problem, ready or not problem
            await wait_any(stop, timeout=pause)
    finally:
        if stop.is_set():
            _send(address, ["STOPPING=1"])


def watchdog_timeout(environment: Mapping[str, str], pid: int) -> float:
    """Return the watchdog timeout in seconds; 0 if systemd does not watch this process."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0


def check_interval(interval: float, timeout: float) -> float:
    """Return the seconds between two checks: at most half of the watchdog timeout, as sd_notify(3) recommends."""
    return min(interval, timeout / 2) if timeout else interval


def _join(problems: Iterable[str]) -> str:
    return " ".join("; ".join(problem for problem in problems if problem).split())


def _send(address: str, lines: list[str]) -> bool:
    """Send without blocking and return whether it succeeded. An address that starts with "@" is an abstract socket."""
    path = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(0.0)
            if lines:
                sender.sendto("\n".join(lines).encode(), path)
    except OSError as error:
        LOG.debug("systemd notification failed", extra={"path": address, "error": str(error)})
        return False
    return True
