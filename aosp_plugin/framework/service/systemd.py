"""Tells systemd that the process is ready, and that its event loop is alive."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping

from aosp_plugin.framework.timing import wait_any

LOG = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two readings of the state of the resources."""


async def notify(
    unready: Callable[[], Collection[str]],
    stop: asyncio.Event,
    reloading: asyncio.Event,
    environment: Mapping[str, str] = os.environ,
    interval: float = INTERVAL,
) -> None:
    """Notify systemd until ``stop`` or ``reloading`` is set, if the process is a service of Type=notify (sd_notify(3)).

    Sends READY=1 once ``unready`` returns no cause, and the causes as the status. Sends WATCHDOG=1 whatever they are:
    only a stuck event loop or the end of the task misses it, and systemd restarts the service. The last message is
    STOPPING=1, or RELOADING=1: the reload lasts until the program that is executed next sends READY=1.
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
            while not (stop.is_set() or reloading.is_set()):
                causes = unready()
                status = " ".join("; ".join(causes or ["registered"]).split())
                lines = ["READY=1"] if not (ready or causes) else []
                lines += [f"STATUS={status}"] if status != sent_status else []
                lines += ["WATCHDOG=1"] if timeout else []
                if not lines or _send(sender, address, *lines):
                    sent_status, ready = status, ready or not causes
                await wait_any(stop, reloading, timeout=pause)
        finally:
            if reloading.is_set() and not stop.is_set():
                _send(sender, address, "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            else:
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
