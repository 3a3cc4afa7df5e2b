"""What a Node object shows over time, as a watch reports it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from types import TracebackType

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

_WATCH: Final = 3.0
"""Seconds of one watch."""


class Change(NamedTuple):
    """A change of the Node object."""

    at: float
    """Seconds since the start of the history."""
    capacity: int
    allocatable: int


class NodeHistory:
    """Records capacity and allocatable of a node inside the context, in a thread of its own."""

    def __init__(self, cluster: Cluster, machine: Machine, resource: str = PHONE) -> None:
        """Record ``resource`` of the node ``machine``."""
        self._api = cluster.api
        self._name = machine.name
        self._resource = resource
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._record, name=f"history of {machine.name}", daemon=True)
        self._started = time.monotonic()
        self.changes: list[Change] = []

    def __enter__(self) -> Self:
        """Start; return when the current state is known."""
        self._thread.start()
        until(lambda: self.changes, f"the watch on {self._name} has begun")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Raises AssertionError if the watch has failed."""
        watched = self._thread.is_alive()
        self._stop.set()
        self._thread.join(3 * _WATCH)
        assert watched or error, f"the watch on {self._name} has failed"

    def without_devices(self) -> list[float]:
        """Return the length of each time in which nothing was allocatable, in seconds."""
        ends = [change.at for change in self.changes[1:]] + [time.monotonic() - self._started]
        return [end - change.at for change, end in zip(self.changes, ends, strict=True) if not change.allocatable]

    @property
    def amounts(self) -> list[tuple[int, int]]:
        """Capacity and allocatable, at the start and after each change."""
        return [(change.capacity, change.allocatable) for change in self.changes]

    def __str__(self) -> str:
        """Return the states in their order: seconds, allocatable/capacity."""
        return ", ".join(f"{change.at:.1f} s: {change.allocatable}/{change.capacity}" for change in self.changes)

    def _record(self) -> None:
        query = {"fieldSelector": f"metadata.name={self._name}"}
        while not self._stop.is_set():
            try:
                for event in self._api.watch(f"{CORE}/nodes", _WATCH, **query):
                    if event["type"] == "ERROR":  # the version is too old
                        query.pop("resourceVersion", None)
                        break
                    # The next watch continues from here, so that nothing is missed between two of them.
                    query["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
                    self._add(event["object"]["status"])
            except OSError:  # the API server is away
                self._stop.wait(0.2)

    def _add(self, status: dict[str, dict[str, str]]) -> None:
        capacity, allocatable = (
            int(status.get(part, {}).get(self._resource, 0)) for part in ("capacity", "allocatable")
        )
        change = Change(time.monotonic() - self._started, capacity, allocatable)
        if not self.changes or self.changes[-1][1:] != change[1:]:
            self.changes.append(change)
