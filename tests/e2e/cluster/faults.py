"""The faults: of the control plane, of machines, of plugins, of binder devices, and of the phones.

Each is a context manager: the fault happens at entry, and its exit ends it.
"""

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Final

from tests.e2e.cluster import outside, phones, plugin
from tests.e2e.cluster.fault_world import PATIENT, World
from tests.e2e.cluster.machine import DEVICES
from tests.e2e.common.waiting import until
from tests.e2e.kubelet.pods import PREFIX

NOT_READY: Final = 50.0
"""Seconds without a heartbeat after which a node is NotReady (node-monitor-grace-period)."""
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
    time.sleep(NOT_READY + 15)
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
