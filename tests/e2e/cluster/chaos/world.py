"""What the faults change, and what they must not: the phones that no fault has touched."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import invariants, phones, plugin
from tests.e2e.cluster.outside import containers
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    import random

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine
    from tests.e2e.cluster.outside import Container

MACHINES: Final = 3
DEPLOYMENT: Final = "web"
STATEFUL_SET: Final = "db"
REPLICAS: Final = 8
MOST: Final = 14
"""More than the machines have phones for, so that some pods wait."""
PATIENT: Final = 180.0
"""Seconds for a request that has to wait for the end of another fault."""
TTL: Final = 5
"""The configured ``missing_device_ttl`` in seconds: how long a missing device counts for capacity."""


class World:
    """The cluster, and which phones faults may end in the current step."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.touched: set[str] = set()
        """The machines whose phones the step's faults may end or restart."""
        self.deleted: set[str] = set()
        """The names of the phones that the step has deleted."""
        self.scaled = False
        """Whether the step has scaled a controller down, which chooses the pods."""
        self.configurations = 0
        self._before: dict[str, tuple[str, str, str]] = {}

    def start(self) -> None:
        """Install the plugin, and run phones."""
        plugin.install(self.cluster, self.values())
        phones.create(self.cluster, phones.deployment(DEPLOYMENT, REPLICAS))
        phones.create(self.cluster, phones.stateful_set(STATEFUL_SET, 2))
        invariants.settle(self.cluster)

    def values(self) -> dict[str, Any]:
        """Return the chart's values, with a key that changes with each configuration."""
        return plugin.values(missing_device_ttl=TTL + self.configurations % 2)

    def machine(self, rng: random.Random, *, touch: bool = False) -> Machine:
        """Return a random machine that runs; ``touch``: its phones may end."""
        machine = rng.choice([machine for machine in self.cluster.machines if machine.running])
        if touch:
            self.touched.add(machine.name)
        return machine

    def begin(self) -> None:
        """Begin a step: remember the phones."""
        self.touched, self.deleted, self.scaled = set(), set(), False
        self._before = self._phones()

    def disturbed(self) -> list[str]:
        """Return which phones have ended or restarted in this step, although no fault has touched them."""
        now, found = self._phones(), []
        for uid, (name, node, container) in self._before.items():
            if node in self.touched or name in self.deleted:
                continue
            if uid not in now:
                if not self.scaled:
                    found.append(f"{name} of {node} is gone")
            elif now[uid][2] != container:
                found.append(f"{name} of {node} has another container")
        return found

    def plugin_container(self, machine: Machine) -> Container:
        """Return the plugin's container of a machine. Raises LookupError while there is none."""
        for container in containers(machine):
            if container.name == plugin.NAME:
                return container
        raise LookupError(f"{machine.name} has no container of the plugin")

    def reboot(self, machine: Machine, rng: random.Random) -> None:
        """Boot a machine that is shut down; its devices are created after the kubelet has started."""
        machine.boot(self.cluster.parts.kubernetes)
        time.sleep(rng.uniform(0, 5))
        machine.nodes("create", "--stand-ins", "--count", "12")

    def tend(self) -> None:
        """Start kubelets that have ended, as systemd does: one that starts before containerd gives up."""
        for machine in self.cluster.machines:
            if machine.running and not machine.kubelet.running:
                machine.start_kubelet()

    def recover(self) -> None:
        """Bring everything back that may be missing after a step that failed."""
        self.cluster.control_plane.start()
        for machine in self.cluster.machines:
            machine.connect()
            if not machine.running:
                machine.boot(self.cluster.parts.kubernetes)
            if not machine.containerd.running:
                machine.runtime.start()
            machine.nodes("create", "--stand-ins", "--count", "12")
        for machine in self.cluster.machines:
            with contextlib.suppress(AssertionError):
                self.cluster.kubectl("uncordon", machine.name)

    def delete(self, path: str, **query: str) -> None:
        """Delete an object, as soon as the API server answers: another fault may have taken it away."""

        def deleted() -> bool:
            self.cluster.api.delete(path, **query)
            return True

        until(deleted, f"{path} is deleted", seconds=PATIENT)

    def _phones(self) -> dict[str, tuple[str, str, str]]:
        """Return name, node and container of each phone that runs, by the pod's UID."""

        def read() -> list[dict[str, Any]]:
            return self.cluster.api.list(phones.collection("Pod"))

        pods = until(lambda: [*read(), {}], "the API server lists the pods")[:-1]
        return {
            pod["metadata"]["uid"]: (pod["metadata"]["name"], pod["spec"]["nodeName"], phones.container_of(pod)[0])
            for pod in pods
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }
