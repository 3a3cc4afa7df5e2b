"""What a watch on the API server reports over time, as a thread records it."""

import itertools
import threading
import time
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from tests.e2e.cluster import dra
from tests.e2e.cluster.api import CORE, Api
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.kubelet.waiting import until

_WATCH: Final = 3.0
"""Seconds of one request; the next one continues from its last event."""


class Event(NamedTuple):
    """An object was added, modified or deleted."""

    at: float
    """Seconds since the epoch, as in the logs of other processes."""
    kind: str
    object: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the object."""
        return str(self.object["metadata"]["name"])


class Watch:
    """Records the events of a collection inside the context."""

    def __init__(self, api: Api, path: str, **query: str) -> None:
        """``query`` selects objects, as in :meth:`Api.list`."""
        self._api = api
        self._path = path
        self._query = query
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._record, name=f"watch on {path}", daemon=True)
        self._version = ""
        self.first: list[dict[str, Any]] = []
        """The objects at the start."""
        self.events: list[Event] = []

    def __enter__(self) -> Self:
        """Start with the current state."""
        answer = self._api.get(self._path, **self._query)
        self.first, self._version = answer["items"], answer["metadata"]["resourceVersion"]
        self.started = time.time()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Raises AssertionError if the watch has failed."""
        watched = self._thread.is_alive()
        self._stop.set()
        self._thread.join(3 * _WATCH)
        assert watched or error, f"the watch on {self._path} has failed"

    def __str__(self) -> str:
        """Return the events in their order."""
        return ", ".join(f"{event.at - self.started:.3f} s: {event.kind} {event.name}" for event in self.events)

    def _record(self) -> None:
        while not self._stop.is_set():
            query = self._query | {"resourceVersion": self._version}
            try:
                for event in self._api.watch(self._path, _WATCH, **query):
                    if event["type"] == "ERROR":  # the version is too old
                        self._version = self._api.get(self._path)["metadata"]["resourceVersion"]
                        break
                    self._version = event["object"]["metadata"]["resourceVersion"]
                    self.events.append(Event(time.time(), event["type"], event["object"]))
            except OSError:  # the API server is away, or has ended the watch of a client that is too slow
                self._stop.wait(0.2)


class NodeHistory(Watch):
    """The capacity and the allocatable amount of a node's phones."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        """Record the phones of the node ``machine``."""
        super().__init__(cluster.api, f"{CORE}/nodes", fieldSelector=f"metadata.name={machine.name}")

    @property
    def changes(self) -> list[tuple[float, tuple[int, int]]]:
        """Time, and capacity and allocatable, at the start and after each change of them."""
        states = [(self.started, self.first[0]), *((event.at, event.object) for event in self.events)]
        amounts = [(at, _amounts(node["status"])) for at, node in states]
        return [amounts[0]] + [now for before, now in itertools.pairwise(amounts) if now[1] != before[1]]

    @property
    def amounts(self) -> list[tuple[int, int]]:
        """Capacity and allocatable, at the start and after each change."""
        return [amounts for _, amounts in self.changes]

    def __str__(self) -> str:
        """Return the states in their order: seconds, capacity and allocatable."""
        return ", ".join(f"{at - self.started:.1f} s: {amounts}" for at, amounts in self.changes)


class SliceHistory(Watch):
    """The driver's ResourceSlices of a node."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        """Record the slices of the node ``machine``."""
        selector = f"spec.driver={dra.DRIVER},spec.nodeName={machine.name}"
        super().__init__(cluster.api, dra.SLICES, fieldSelector=selector)

    def wait_back(self, seconds: float) -> list[float]:
        """Wait until slices were deleted and all of them are back; return for how many seconds each was away."""
        return until(self._absences, "the slices were deleted and are back", seconds=seconds)

    def _absences(self) -> list[float]:
        gone: dict[str, float] = {}
        found = []
        for event in self.events:
            if event.kind == "DELETED":
                gone[event.name] = event.at
            elif event.kind == "ADDED" and event.name in gone:
                found.append(event.at - gone.pop(event.name))
        assert not gone, f"deleted, and not back: {sorted(gone)}"
        return found


def _amounts(status: dict[str, dict[str, str]]) -> tuple[int, int]:
    """Return capacity and allocatable of a Node's status."""
    capacity, allocatable = (status.get(part, {}) for part in ("capacity", "allocatable"))
    return int(capacity.get(PHONE, 0)), int(allocatable.get(PHONE, 0))
