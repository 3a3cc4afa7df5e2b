"""Notifies systemd of the plugin's state if it runs as a service of Type=notify: sd_notify(3), without its library.

systemd requests notifications through environment variables. Without them nothing is sent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import wait_any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

LOG = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two checks of the plugin's state."""


async def notify(
    unready: Callable[[], Iterable[str]],
    stop: asyncio.Event,
    environment: Mapping[str, str] = os.environ,
    interval: float = INTERVAL,
) -> None:
    """Notify systemd until ``stop`` is set; return at once if it requests no notifications.

    Sends READY=1 once ``unready`` returns no problem, and its problems as the status; empty texts do not count as
    problems. Sends WATCHDOG=1 whatever they are: only a stuck event loop or the end of the task misses it, and systemd
    restarts the service. Sends STOPPING=1 at the end.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    timeout = watchdog_timeout(environment, os.getpid())
    pause = check_interval(interval, timeout)
    sent_status, ready = None, False
    with contextlib.closing(Sender(address)) as sender:
        try:
            while not stop.is_set():
                problem = " ".join("; ".join(filter(None, unready())).split())
                lines = ["READY=1"] if not (ready or problem) else []
                lines += [f"STATUS={problem or 'registered'}"] if problem != sent_status else []
                lines += ["WATCHDOG=1"] if timeout else []
                if sender.send(lines):
                    sent_status, ready = problem, ready or not problem
                await wait_any(stop, timeout=pause)
        finally:
            sender.send(["STOPPING=1"])


def watchdog_timeout(environment: Mapping[str, str], pid: int) -> float:
    """Return the watchdog timeout in seconds; 0 if systemd does not watch this process."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0


def check_interval(interval: float, timeout: float) -> float:
    """Return the seconds between two checks: at most half of the watchdog timeout, as sd_notify(3) recommends."""
    return min(interval, timeout / 2) if timeout else interval


class Sender:
    """Sends datagrams to systemd. Keeps its socket, so that it needs no free descriptor later."""

    def __init__(self, address: str) -> None:
        """Send to ``address``; one that starts with "@" is an abstract socket."""
        self._path = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None

    def send(self, lines: Sequence[str]) -> bool:
        """Send without blocking, and return whether it succeeded. Opens the socket if that has failed so far."""
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.settimeout(0.0)
            if lines:
                self._socket.sendto("\n".join(lines).encode(), self._path)
        except OSError as error:
            LOG.debug("systemd notification failed", extra={"path": self._path, "error": str(error)})
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
