"""Other plugins of the same resource on this host, found by their sockets in the kubelet's plugin directory.

Two plugins of one resource override each other, and the end of one may take the devices of the other. Before 1.37, a
kubelet keeps one current plugin per resource, the last one that registered; when that one ends, it marks the devices
unhealthy, although the stream of the remaining plugin stays open (pkg/kubelet/cm/devicemanager/plugin/v1beta1/
handler.go ``runClient``; manager.go ``runEndpoint`` in 1.20). The remaining plugin therefore registers again. It does
so even if it has already sent another list: the kubelet then counts the devices as healthy, but rejects each pod.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.deviceplugin.supervisor import DisconnectReason
from aosp_plugin.framework.errors import WorkerTimeoutError
from aosp_plugin.framework.observer import NULL_OBSERVER
from aosp_plugin.framework.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory
    from aosp_plugin.framework.observer import Observer

LOG = logging.getLogger(__name__)

MIN_INTERVAL = 1.0
"""Seconds between two scans after changes: the kubelet writes its checkpoint there with each allocation."""

TIMEOUT = 10.0
"""Seconds for a scan."""

_CREDENTIALS = struct.Struct("3i")
"""struct ucred (include/linux/socket.h): process, user, group."""


class OtherPlugin(NamedTuple):
    """A socket that another process listens on."""

    endpoint: str
    """The name of the socket."""
    number: int
    """When it was created, in milliseconds since the epoch, according to its name."""
    pid: int
    """Process ID; 0 if the process is in another PID namespace."""

    def __str__(self) -> str:
        """Return the name of the socket, and the process ID if it is known."""
        return f"{self.endpoint} (process {self.pid})" if self.pid else self.endpoint


def find_other_plugins(directory: PluginDirectory, own_endpoint: str = "") -> tuple[OtherPlugin, ...]:
    """Return the other processes that serve the resource of ``directory``, in the order of registration.

    ``own_endpoint`` is skipped. Sockets of this process are recognized too: there may be two plugins of the resource
    during a reload. Blocks; to be called in a worker thread. Raises OSError.
    """
    found = []
    for endpoint in directory.socket_names():
        if endpoint == own_endpoint:
            continue
        pid = _listener(os.path.join(directory.path, endpoint))
        if pid is not None and pid != os.getpid():
            found.append(OtherPlugin(endpoint, directory.number(endpoint), pid))
    return tuple(sorted(found, key=lambda plugin: plugin.number))


def _listener(path: str) -> int | None:
    """Return the process ID of the listener on the socket at ``path`` (unix(7), SO_PEERCRED); None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(path)
        except OSError:  # stale or gone; or too busy to accept now, and found by the next scan
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid


class Succession:
    """Decides when the plugin has to register again because a plugin that registered later has ended. No I/O."""

    def __init__(self) -> None:
        self._own = 0
        self._overridden = False
        self._ended_once = False

    def observe(self, own: int, others: Collection[OtherPlugin]) -> bool:
        """Process the result of a scan; return whether to register again.

        ``own`` is the number of the plugin's current socket, 0 while it is not registered. The end of a later plugin
        counts if two scans in a row find no later one: a plugin that registers again changes its socket.
        """
        if own != self._own:
            self._own, self._overridden, self._ended_once = own, False, False
        if own and any(other.number > own for other in others):
            self._overridden, self._ended_once = True, False
            return False
        if not self._overridden:
            return False
        if self._ended_once:
            self._overridden = self._ended_once = False
            return True
        self._ended_once = True
        return False

    @property
    def pending(self) -> bool:
        """Whether another scan has to confirm the end of a plugin."""
        return self._ended_once


class OtherPlugins:
    """Keeps track of the other plugins of one resource. For the event loop, except for ``notice``."""

    def __init__(
        self,
        directory: PluginDirectory,
        *,
        changed: asyncio.Event,
        own_endpoint: Callable[[], str],
        view_due: asyncio.Event,
        reregister: Callable[[DisconnectReason], None],
        interval: float,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """Scan ``directory`` whenever ``changed`` is set, which is cleared then.

        ``own_endpoint`` returns the name of the plugin's socket while it is registered, and else an empty string.
        ``view_due`` is set when another plugin has started or ended. ``reregister`` is called with the reason when the
        kubelet has lost the plugin. ``interval`` is in seconds.
        """
        self._directory = directory
        self._changed = changed
        self._worker = Worker("other plugins")
        self._own_endpoint = own_endpoint
        self._view_due = view_due
        self._reregister = reregister
        self._observer = observer
        self._interval = interval
        self._succession = Succession()
        self.found: tuple[OtherPlugin, ...] = ()

    @property
    def notice(self) -> str:
        """Which other plugins there are; empty if there is none. May be read in any thread."""
        found = self.found
        return f"another plugin of this resource runs on this node: {', '.join(map(str, found))}" if found else ""

    async def run(self) -> None:
        """Scan after each change of the directory, and at intervals while there is another plugin, until cancelled."""
        try:
            while True:
                await self._scan()
                await asyncio.sleep(min(MIN_INTERVAL, self._interval))
                expected = bool(self.found) or self._succession.pending
                await wait_any(self._changed, timeout=self._interval if expected else None)
        finally:
            self._worker.close()

    async def _scan(self) -> None:
        self._changed.clear()
        own_endpoint = self._own_endpoint()
        try:
            find = partial(find_other_plugins, self._directory, own_endpoint)
            found = await self._worker.run(find, TIMEOUT, label="scan of the plugin directory")
        except (OSError, WorkerTimeoutError):  # the directory is gone or hangs: the supervisor reports it
            return
        if found != self.found:
            self.found = found
            self._view_due.set()
            self._observer.other_plugins(len(found))
            if found:
                LOG.warning("another plugin of the resource is running", extra={"endpoint": ",".join(map(str, found))})
            else:
                LOG.info("no other plugin of the resource is running")
        if self._succession.observe(self._directory.number(own_endpoint), found):
            self._reregister(DisconnectReason.LATER_PLUGIN_ENDED)
