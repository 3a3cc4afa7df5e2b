"""What has happened to objects of the API server: a watch from an earlier version on has all changes since then."""

from typing import Any, Final

from tests.e2e.cluster import dra
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import Machine

_WATCH: Final = 2.0
"""Seconds within which the API server sends the changes that it knows."""


class History:
    """The changes of a collection since the start of this object."""

    def __init__(self, cluster: Cluster, path: str, selector: str) -> None:
        """``selector`` is a field selector of objects."""
        self._api, self._path, self._selector = cluster.api, path, selector
        answer = self._api.get(path, fieldSelector=selector)
        self.first: list[dict[str, Any]] = answer["items"]
        """The objects at the start."""
        self._version = answer["metadata"]["resourceVersion"]

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Return ADDED, MODIFIED or DELETED and the object, of each change in its order."""
        query = {"fieldSelector": self._selector, "resourceVersion": self._version}
        events = [(event["type"], event["object"]) for event in self._api.watch(self._path, _WATCH, **query)]
        assert "ERROR" not in dict(events), f"{self._path}: {events}"
        return events


def of_slices(cluster: Cluster, machine: Machine) -> History:
    """Return the history of the driver's ResourceSlices of a node."""
    return History(cluster, dra.SLICES, f"spec.driver={dra.DRIVER},spec.nodeName={machine.name}")
