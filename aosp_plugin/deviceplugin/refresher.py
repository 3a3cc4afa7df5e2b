"""Keeping the inventory as the host is: a look after each burst of file events, and one now and then."""

from __future__ import annotations

import collections
import logging
import time
from typing import TYPE_CHECKING

from aosp_plugin.errors import AospPluginError
from aosp_plugin.waiting import any_set, in_thread, settle

if TYPE_CHECKING:
    import asyncio

    from aosp_plugin.deviceplugin.backend import Backend
    from aosp_plugin.deviceplugin.inventory import Inventory, Snapshot
    from aosp_plugin.watch import Subscription

LOG = logging.getLogger(__name__)

QUIET, CAP = 0.01, 0.25
"""Seconds without an event that end a burst, and seconds after which a burst is looked at though it goes on: the
kubelet writes and syncs its checkpoint at every message."""

HUNG_AFTER = 30.0
"""Seconds after which a look that has not returned is a fault of the process."""


class Refresher:
    """Calls the backend's ``refresh`` and publishes what comes of it."""

    def __init__(self, backend: Backend, inventory: Inventory, files: Subscription, stop: asyncio.Event) -> None:
        self._backend = backend
        self._inventory = inventory
        self._files = files
        self._stop = stop
        self._looking_since: float | None = None
        self._failure = ""
        self._left_out = 0

    @property
    def problem(self) -> str:
        """Why the inventory may not be as the host is; empty where it is."""
        if self._looking_since is not None and time.monotonic() - self._looking_since > HUNG_AFTER:
            return f"the look at the devices has not returned for {time.monotonic() - self._looking_since:.0f} s"
        return self._failure

    def trigger(self) -> None:
        """Have a look taken though no event came."""
        self._files.changed.set()

    async def look(self) -> None:
        """Look once, and publish. Raises OSError and AospPluginError.

        Directories are watched before they are looked at, so that no change falls between; a look that finds
        further directories, as links lead into them, is followed by another.
        """
        while True:
            self._files.changed.clear()
            directories = self._backend.directories()
            self._files.watch(directories)
            self._looking_since = time.monotonic()
            try:
                await in_thread(self._backend.refresh, "look")
            finally:
                self._looking_since = None
            if self._backend.directories() == directories:
                break
        if self._inventory.publish(self._backend.devices()):
            self._log(self._inventory.snapshot)

    async def run(self) -> None:
        """Keep the inventory up to date until ``stop`` is set. A look that fails leaves it as it was."""
        while not self._stop.is_set():
            if await any_set(self._files.changed, self._stop, timeout=self._files.interval):
                await settle(self._files.changed, QUIET, CAP)
            if self._stop.is_set():
                return
            try:
                await self.look()
            except (OSError, AospPluginError) as error:
                self._failed(f"the devices can't be looked at: {error}")
            else:
                self._failed("")

    def _failed(self, failure: str) -> None:
        if failure and failure != self._failure:
            LOG.error(failure)
        elif self._failure and not failure:
            LOG.info("the devices can be looked at again")
        self._failure = failure

    def _log(self, snapshot: Snapshot) -> None:
        ill = collections.Counter(device.reason for device in snapshot.devices if not device.healthy)
        counts = {
            "devices": len(snapshot.devices),
            "healthy": snapshot.healthy,
            "unhealthy": ",".join(f"{why}:{n}" for why, n in sorted(ill.items())),
        }
        LOG.info("devices changed", extra={"revision": snapshot.revision, **counts})
        if snapshot.left_out and snapshot.left_out != self._left_out:
            LOG.error(
                "devices are left out, as the kubelet takes no message over 4 MiB; spread them over several resources",
                extra={"left_out": snapshot.left_out, **counts},
            )
        self._left_out = snapshot.left_out
