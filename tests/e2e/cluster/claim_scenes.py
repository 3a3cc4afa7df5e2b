"""Pods with claims under test, and what must not happen to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import dra, phones
from tests.e2e.cluster.scenes import PHONES
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

RUNNING: Final = 2
"""The pods of :class:`Undisturbed`."""


class Undisturbed:
    """Pods with claims that a failure must not touch: their containers, their phones, and what the driver knows."""

    def __init__(self, cluster: Cluster) -> None:
        """Run the pods, on the first machine."""
        dra.ensure(cluster)
        self._cluster = cluster
        phones.create(cluster, dra.deployment("web", RUNNING))
        self._pods = dra.wait_running(cluster, "web", RUNNING)
        self._containers = self._now(self._pods)
        self.owners = dra.owners(cluster, self._pods)
        self.claims = [claim for pod in self._pods for claim in dra.claims_of(cluster, pod)]

    @staticmethod
    def _now(pods: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
        return {pod["metadata"]["uid"]: phones.container_of(pod) for pod in pods}

    def check(self) -> None:
        """Check that nothing has happened to the pods, and that the driver has their claims."""
        pods = dra.wait_running(self._cluster, "web", RUNNING)
        assert self._now(pods) == self._containers, f"{self._now(pods)}, before: {self._containers}"
        assert dra.owners(self._cluster, pods) == self.owners
        until(self._prepared, "the driver has the claims")

    def _prepared(self) -> bool:
        return all(dra.prepared(self._cluster.machine, claim) for claim in self.claims)

    def end(self) -> None:
        """Delete the pods, check that their claims are unprepared, and that another pod gets each phone."""
        cluster = self._cluster
        phones.remove(cluster, "Deployment", "web")
        dra.wait_unprepared(cluster.machine, *self.claims)
        phones.create(cluster, dra.deployment("next", PHONES))
        assert len(dra.owners(cluster, dra.wait_running(cluster, "next", PHONES))) == PHONES
        phones.remove(cluster, "Deployment", "next")
        until(lambda: not dra.specs(cluster.machine), "no claim is prepared", seconds=2 * PATIENCE)
