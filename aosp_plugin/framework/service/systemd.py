"""Tells systemd that the process is ready, and that its event loop turns."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.timings import DEFAULT

LOG = logging.getLogger(__name__)


async def notify(
    unready: Callable[[], Iterable[str]],
    stop: asyncio.Event,
    environment: Mapping[str, str] = os.environ,
    interval: float = DEFAULT.state,
) -> None:
    """Notify systemd until ``stop`` is set, if the process is a service of Type=notify (sd_notify(3)).

    Sends READY=1 once ``unready`` returns no problem, and its problems as the status; empty texts do not count as
    problems. Sends WATCHDOG=1 whatever they are: only a stuck event loop or the end of the task misses it, and systemd
    restarts the service. Sends STOPPING=1 at the end.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    timeout = watchdog_timeout(environment, os.getpid())
    pause = min(interval, timeout / 2) if timeout else interval  # as sd_notify(3) recommends
    sent_status, ready = None, False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:  # kept: later, no descriptor may be free
        sender.settimeout(0.0)
        try:
            while not stop.is_set():
                problem = " ".join("; ".join(filter(None, unready())).split())
                lines = ["READY=1"] if not (ready or problem) else []
                lines += [f"STATUS={problem or 'registered'}"] if problem != sent_status else []
                lines += ["WATCHDOG=1"] if timeout else []
                if not lines or _send(sender, address, *lines):
                    sent_status, ready = problem, ready or not problem
                await wait_any(stop, timeout=pause)
        finally:
            _send(sender, address, "STOPPING=1")


def watchdog_timeout(environment: Mapping[str, str], pid: int) -> float:
    """Return the watchdog timeout in seconds; 0 if systemd does not watch this process."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    watched = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
    return int(microseconds) / 1e6 if watched and microseconds.isdecimal() else 0.0


def _send(sender: socket.socket, address: str, *lines: str) -> bool:
    """Send to a path, or to an abstract socket if it starts with "@"; return whether that succeeded."""
    try:
        sender.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
    except OSError as error:
        LOG.debug("systemd notification failed", extra={"path": address, "error": str(error)})
        return False
    return True
