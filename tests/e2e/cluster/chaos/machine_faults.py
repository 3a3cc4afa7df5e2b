"""Faults of machines: kubelet, containerd, the network, a reboot, and what an administrator does to a node."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.chaos.registry import fault
from tests.e2e.cluster.chaos.world import PATIENT
from tests.e2e.cluster.invariants import SETTLE
from tests.e2e.kubelet.standalone import PLUGINS
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.e2e.cluster.chaos.world import World

NOT_READY: Final = 50.0
"""Seconds without a heartbeat after which a node is NotReady (node-monitor-grace-period)."""


@fault("machine", weight=6)
def kubelet_is_killed(world: World, rng: random.Random) -> Iterator[str]:
    """A kubelet is killed, and restarted at once or after some seconds."""
    machine = world.machine(rng)
    machine.kubelet.end(rng.choice((signal.SIGKILL, signal.SIGTERM)))
    yield machine.name
    time.sleep(rng.choice((0, rng.uniform(1, 15))))
    machine.start_kubelet()


@fault("machine")
def all_kubelets_are_killed(world: World, rng: random.Random) -> Iterator[str]:
    """All kubelets are killed at once, and restarted after some seconds."""
    for machine in world.cluster.machines:
        machine.kubelet.end(signal.SIGKILL)
    yield "all machines"
    time.sleep(rng.uniform(0, 5))
    for machine in world.cluster.machines:
        machine.start_kubelet()


@fault("machine")
def kubelet_stops(world: World, rng: random.Random) -> Iterator[str]:
    """A kubelet stops for some seconds (SIGSTOP)."""
    machine = world.machine(rng)
    machine.kubelet.suspend()
    yield machine.name
    time.sleep(rng.uniform(1, 20))
    machine.kubelet.resume()


@fault("machine", weight=4)
def containerd_is_killed(world: World, rng: random.Random) -> Iterator[str]:
    """Containerd is killed, and restarted at once or after some seconds; its containers run on."""
    machine = world.machine(rng)
    machine.containerd.end(signal.SIGKILL)
    yield machine.name
    time.sleep(rng.choice((0, rng.uniform(1, 10))))
    machine.runtime.start()


@fault("machine")
def kubelet_and_containerd_are_killed(world: World, rng: random.Random) -> Iterator[str]:
    """Both are killed, and started again in one order or the other."""
    machine = world.machine(rng)
    machine.kubelet.end(signal.SIGKILL)
    machine.containerd.end(signal.SIGKILL)
    yield machine.name
    starts = [machine.runtime.start, machine.start_kubelet]
    rng.shuffle(starts)
    for start in starts:
        start()


@fault("machine")
def plugin_directory_is_emptied(world: World, rng: random.Random) -> Iterator[str]:
    """All sockets in the kubelet's plugin directory are deleted, and the kubelet is restarted later."""
    machine = world.machine(rng)
    for path in (machine.root / str(PLUGINS).lstrip("/")).glob("*.sock"):
        path.unlink()
    yield machine.name
    time.sleep(rng.uniform(0, 5))
    machine.kubelet.end(signal.SIGTERM)
    machine.start_kubelet()


@fault("machine", weight=4)
def machine_is_cut_off(world: World, rng: random.Random) -> Iterator[str]:
    """A machine loses its network for some seconds, or for so long that its node is NotReady."""
    machine = world.machine(rng)
    machine.disconnect()
    seconds = NOT_READY + 15 if rng.random() < 0.25 else rng.uniform(2, 20)
    yield f"{machine.name}, {seconds:.0f} s"
    time.sleep(seconds)
    machine.connect()


@fault("machine", weight=4, bound=1.5 * SETTLE)
def machine_reboots(world: World, rng: random.Random) -> Iterator[str]:
    """A machine loses its power, and boots at once or after some seconds; devices appear after the kubelet."""
    machine = world.machine(rng, touch=True)
    machine.shut_down()
    yield machine.name
    time.sleep(rng.choice((0, rng.uniform(1, 30))))
    world.reboot(machine, rng)


@fault("machine", weight=3)
def node_is_drained(world: World, rng: random.Random) -> Iterator[str]:
    """A node is drained, and uncordoned later."""
    machine = world.machine(rng, touch=True)
    _until_done(world, "drain", machine.name, "--ignore-daemonsets", "--force", "--timeout=60s")
    yield machine.name
    time.sleep(rng.uniform(0, 5))
    _until_done(world, "uncordon", machine.name)


@fault("machine")
def node_is_deleted(world: World, rng: random.Random) -> Iterator[str]:
    """A Node object is deleted; the kubelet is restarted, which registers it again."""
    machine = world.machine(rng, touch=True)
    world.delete(f"{CORE}/nodes/{machine.name}")
    yield machine.name
    machine.kubelet.end(signal.SIGTERM)
    machine.start_kubelet()


def _until_done(world: World, *words: str) -> None:
    """Run kubectl until it succeeds: another fault may have taken the API server away."""
    until(lambda: world.cluster.kubectl(*words) is not None, " ".join(words), seconds=PATIENT)
