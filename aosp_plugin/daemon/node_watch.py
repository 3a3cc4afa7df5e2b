"""Watches the plugin's resources, and records what an operator should see as Events on the Node."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.daemon.node_conditions import Conditions, Occurrence
from aosp_plugin.daemon.node_devices import LostDevices, lost_message, recovered_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aosp_plugin.framework.resource_server import ResourceServer
    from aosp_plugin.framework.worker import Worker


class WatchTimings(NamedTuple):
    """Intervals in seconds."""

    interval: float = 1.0
    """Between two readings of the plugin's state."""
    aggregation: float = 5.0
    """From a change of the devices to its Event, which has all changes until then."""


class ResourceWatch:
    """Watches one resource. For one event loop."""

    def __init__(
        self,
        server: ResourceServer,
        worker: Worker,
        record: Callable[[str, Occurrence], None],
        timings: WatchTimings = WatchTimings(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``worker`` compares the devices; ``record`` is called with the resource and what has happened."""
        self._server = server
        self._worker = worker
        self._record = record
        self._timings = timings
        self._clock = clock
        self._conditions = Conditions(server.resource_name)
        self._lost = LostDevices()
        self._due: float | None = None

    async def observe(self) -> None:
        """Read the state once."""
        name, now = self._server.resource_name, self._clock()
        for occurrence in self._conditions.observe(self._server, now):
            self._record(name, occurrence)
        snapshot = self._server.inventory.snapshot
        if snapshot.revision == self._lost.revision:
            self._due = None
            return
        if self._lost.revision and self._due is None:
            self._due = now + self._timings.aggregation
        if self._due is not None and now < self._due:
            return
        self._due = None
        changes = await self._worker.run(partial(self._lost.compare, snapshot))
        if changes.lost:
            self._record(name, Occurrence("Warning", "DevicesLost", lost_message(name, changes, snapshot)))
        if changes.recovered:
            message = recovered_message(name, changes, snapshot)
            self._record(name, Occurrence("Normal", "DevicesRecovered", message))


async def watch(watches: Sequence[ResourceWatch], interval: float = WatchTimings().interval) -> None:
    """Watch resources until cancelled."""
    while True:
        for each in watches:
            await each.observe()
        await asyncio.sleep(interval)
