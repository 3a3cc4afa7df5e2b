"""Faults: of the control plane, of machines, of plugins, of binder devices, and of the phones.

Each is a context manager: the fault happens at entry, and its exit ends it. They change a :class:`World`, but not the
phones that they do not touch.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from tests.e2e.cluster import invariants, outside, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.control_plane import NODE_GRACE
from tests.e2e.cluster.machine import DEVICES
from tests.e2e.common.waiting import until
from tests.e2e.kubelet.pods import PREFIX

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


_AWAY: Final = 5.0
"""Seconds for which a killed program is away."""


@contextlib.contextmanager
def control_plane_is_killed(world: World) -> Iterator[None]:
    """All programs of the control plane are killed."""
    for daemon in world.cluster.control_plane.daemons:
        daemon.end(signal.SIGKILL)
    yield
    time.sleep(_AWAY)
    world.cluster.control_plane.start()


@contextlib.contextmanager
def kubelet_is_killed(world: World) -> Iterator[None]:
    """A kubelet is killed."""
    machine = world.cluster.machines[0]
    machine.kubelet.end(signal.SIGKILL)
    yield
    time.sleep(_AWAY)
    machine.start_kubelet()


@contextlib.contextmanager
def containerd_is_killed(world: World) -> Iterator[None]:
    """Containerd is killed; its containers run on."""
    machine = world.cluster.machines[0]
    machine.containerd.end(signal.SIGKILL)
    yield
    time.sleep(_AWAY)
    machine.runtime.start()


@contextlib.contextmanager
def machine_is_cut_off(world: World) -> Iterator[None]:
    """A machine loses its network for so long that its node is NotReady."""
    machine = world.cluster.machines[0]
    machine.disconnect()
    yield
    time.sleep(NODE_GRACE + 15)
    machine.connect()


@contextlib.contextmanager
def machine_reboots(world: World) -> Iterator[None]:
    """A machine loses its power, and boots; devices appear after the kubelet."""
    machine = world.cluster.machines[0]
    world.touched.add(machine.name)
    machine.shut_down()
    yield
    time.sleep(_AWAY)
    machine.boot(world.cluster.parts.kubernetes)
    time.sleep(_AWAY)
    machine.create_devices()


@contextlib.contextmanager
def node_is_drained(world: World) -> Iterator[None]:
    """A node is drained, and uncordoned later."""
    machine = world.cluster.machines[0]
    world.touched.add(machine.name)
    world.cluster.kubectl("drain", machine.name, "--ignore-daemonsets", "--force", "--timeout=60s", seconds=PATIENT)
    yield
    world.cluster.kubectl("uncordon", machine.name)


@contextlib.contextmanager
def plugin_is_killed(world: World) -> Iterator[None]:
    """The plugin is killed, terminated and killed, one after the other; the kubelet restarts its container."""
    machine = world.cluster.machines[1]
    for name in ("KILL", "TERM", "KILL"):

        def kill(name: str = name) -> bool:
            (process,) = (found.process.name for found in outside.containers(machine) if found.name == plugin.NAME)
            # The process has another ID in this PID namespace.
            return machine.run("kill", f"-{name}", process) == ""

        until(kill, "the plugin gets a signal", seconds=PATIENT)
        time.sleep(1)
    yield


@contextlib.contextmanager
def plugin_pod_is_deleted(world: World) -> Iterator[None]:
    """The plugin's pod is deleted by force."""
    pod = plugin.pod_on(world.cluster, world.cluster.machines[1])
    world.cluster.api.delete(f"{plugin.PODS}/{pod['metadata']['name']}", gracePeriodSeconds="0")
    yield


@contextlib.contextmanager
def devices_vanish(world: World) -> Iterator[None]:
    """Most binder devices of a machine vanish, for longer than they count for its capacity, and return."""
    machine = world.cluster.machines[2]
    for number in range(1, DEVICES):
        (machine.root / f"dev/{PREFIX}{number}").unlink()
    yield
    time.sleep(2 * _AWAY)
    machine.create_devices()


@contextlib.contextmanager
def phones_are_deleted(world: World) -> Iterator[None]:
    """Some phones are deleted by force; their controllers create others."""
    names = [str(pod["metadata"]["name"]) for pod in world.pods()[::3]]
    world.deleted |= set(names)
    for name in names:
        world.cluster.api.delete(f"{phones.collection('Pod')}/{name}", gracePeriodSeconds="0")
    yield


ALL: Final = (
    *(control_plane_is_killed, kubelet_is_killed, containerd_is_killed, machine_is_cut_off, machine_reboots),
    *(node_is_drained, plugin_is_killed, plugin_pod_is_deleted, devices_vanish, phones_are_deleted),
)
