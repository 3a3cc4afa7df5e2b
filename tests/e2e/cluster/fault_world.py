"""What the faults change, and what they must not: the phones that no fault has touched."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from tests.e2e.cluster import invariants, outside, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.common.waiting import until

DEPLOYMENT: Final = "web"
STATEFUL_SET: Final = "db"
REPLICAS: Final = 8
PATIENT: Final = 180.0
"""Seconds for a request that has to wait for the end of another fault."""
TTL: Final = 5
"""The configured ``missing_device_ttl`` in seconds: how long a missing device counts for capacity."""
_INTERVAL: Final = 0.5
"""Seconds between two comparisons of all containers."""


class World:
    """The cluster with phones, and which of them faults may end."""

    def __init__(self, cluster: Cluster) -> None:
        """Install the plugin, and run phones, unless they run."""
        self.cluster = cluster
        self.touched: set[str] = set()
        """The machines whose phones the faults may end or restart."""
        self.deleted: set[str] = set()
        """The names of the phones that the faults have deleted."""
        self._shared: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._compare, daemon=True)
        plugin.install(cluster, plugin.values(missing_device_ttl=TTL))
        for manifest in (phones.deployment(DEPLOYMENT, REPLICAS), phones.stateful_set(STATEFUL_SET, 2)):
            path = phones.collection(manifest["kind"])
            if not cluster.api.find(f"{path}/{manifest['metadata']['name']}"):
                phones.create(cluster, manifest)
        invariants.settle(cluster)

    @contextlib.contextmanager
    def compared(self) -> Iterator[None]:
        """Compare the devices of all containers in a thread, also in the middle of faults."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def problems(self, before: dict[str, tuple[str, str, str]]) -> list[str]:
        """Return which phones have ended or restarted although no fault has touched them, and which share a device."""
        now, found = self.phones(), sorted(self._shared)
        if not self._thread.is_alive():
            found.append("the comparison of devices has failed")
        for uid, (name, node, container) in before.items():
            if node in self.touched or name in self.deleted:
                continue
            if uid not in now:
                found.append(f"{name} of {node} is gone")
            elif now[uid][2] != container:
                found.append(f"{name} of {node} has another container")
        return found

    def tend(self) -> None:
        """Start kubelets that have ended, as systemd does: one that starts before containerd gives up."""
        for machine in self.cluster.machines:
            if machine.running and not machine.kubelet.running:
                machine.start_kubelet()

    def pods(self) -> list[dict[str, Any]]:
        """Return all phones, as soon as the API server answers."""
        path = phones.collection("Pod")
        return until(lambda: [*self.cluster.api.list(path), {}], "the API server lists the pods", seconds=PATIENT)[:-1]

    def phones(self) -> dict[str, tuple[str, str, str]]:
        """Return name, node and container of each phone that runs, by the pod's UID."""
        return {
            pod["metadata"]["uid"]: (pod["metadata"]["name"], pod["spec"]["nodeName"], phones.container_of(pod)[0])
            for pod in self.pods()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    def _compare(self) -> None:
        while not self._stop.wait(_INTERVAL):
            for machine in self.cluster.machines:
                if machine.running:
                    with contextlib.suppress(OSError):  # a container or the machine ends at this moment
                        self._shared |= {f"{machine.name}: {found}" for found in outside.conflicts(machine)}
