"""What happens to the driver's ResourceSlices of a node, as a watch reports it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tests.e2e.cluster import dra
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from types import TracebackType

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

_WATCH: Final = 3.0
"""Seconds of one watch."""


class SliceEvent(NamedTuple):
    """A slice was added, modified or deleted."""

    at: float
    """Seconds since the start of the history."""
    kind: str
    name: str


class SliceHistory:
    """Records the events of a machine's slices inside the context, in a thread of its own."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        """Record the slices of the node ``machine``."""
        self._api = cluster.api
        self._selector = f"spec.driver={dra.DRIVER},spec.nodeName={machine.name}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._record, name=f"slices of {machine.name}", daemon=True)
        self._started = time.monotonic()
        self._version = ""
        self.events: list[SliceEvent] = []

    def __enter__(self) -> Self:
        """Start; return when the watch has begun."""
        answer = self._api.get(dra.SLICES, fieldSelector=self._selector)
        self._version = answer["metadata"]["resourceVersion"]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Raises AssertionError if the watch has failed."""
        watched = self._thread.is_alive()
        self._stop.set()
        self._thread.join(3 * _WATCH)
        assert watched or error, "the watch on the slices has failed"

    def absences(self) -> list[float]:
        """Return for how many seconds each deleted slice was away. Raises AssertionError if one is not back."""
        gone: dict[str, float] = {}
        found = []
        for event in self.events:
            if event.kind == "DELETED":
                gone[event.name] = event.at
            elif event.kind == "ADDED" and event.name in gone:
                found.append(event.at - gone.pop(event.name))
        assert not gone, f"deleted, and not back: {sorted(gone)}"
        return found

    def wait_back(self, seconds: float) -> list[float]:
        """Wait until slices were deleted and all of them are back; return for how many seconds each was away."""
        return until(self.absences, "the slices were deleted and are back", seconds=seconds)

    def __str__(self) -> str:
        """Return the events in their order."""
        return ", ".join(f"{event.at:.3f} s: {event.kind} {event.name}" for event in self.events)

    def _record(self) -> None:
        while not self._stop.is_set():
            query = {"fieldSelector": self._selector, "resourceVersion": self._version}
            try:
                for event in self._api.watch(dra.SLICES, _WATCH, **query):
                    if event["type"] == "ERROR":  # the version is too old
                        self._version = self._api.get(dra.SLICES)["metadata"]["resourceVersion"]
                        break
                    metadata = event["object"]["metadata"]
                    self._version = metadata["resourceVersion"]
                    at = time.monotonic() - self._started
                    self.events.append(SliceEvent(at, event["type"], metadata["name"]))
            except OSError:  # the API server is away
                self._stop.wait(0.2)
