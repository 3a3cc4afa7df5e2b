"""The faults: of the control plane, of machines, of plugins, of binder devices, and of the phones."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import invariants, phones, plugin
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.cluster.fault_world import PATIENT
from tests.e2e.cluster.invariants import SETTLE
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from tests.e2e.cluster.fault_world import World

    Inject = Callable[[World], Iterator[None]]

NOT_READY: Final = 50.0
"""Seconds without a heartbeat after which a node is NotReady (node-monitor-grace-period)."""
_AWAY: Final = 5.0
"""Seconds for which a killed program is away."""
_EFFECT: Final = 1.0
"""Seconds from the end of the faults to the first check: some have an effect only then."""
_STAND_IN: Final = os.makedev(1, 3)


@dataclass(frozen=True)
class Fault:
    """A fault."""

    name: str
    inject: Callable[[World], AbstractContextManager[None]]
    """A context manager: the fault happens at entry; its exit ends it."""
    bound: float
    """The seconds after the end within which the invariants must hold again."""


FAULTS: Final[dict[str, Fault]] = {}


def fault(bound: float = SETTLE) -> Callable[[Inject], Inject]:
    """Register a generator function as a fault."""

    def register(inject: Inject) -> Inject:
        name = inject.__name__.replace("_", " ")
        FAULTS[name] = Fault(name, contextlib.contextmanager(inject), bound)
        return inject

    return register


@fault()
def control_plane_is_killed(world: World) -> Iterator[None]:
    """All programs of the control plane are killed."""
    for daemon in world.cluster.control_plane.daemons:
        daemon.end(signal.SIGKILL)
    yield
    time.sleep(_AWAY)
    world.cluster.control_plane.start()


@fault()
def kubelet_is_killed(world: World) -> Iterator[None]:
    """A kubelet is killed."""
    machine = world.cluster.machines[0]
    machine.kubelet.end(signal.SIGKILL)
    yield
    time.sleep(_AWAY)
    machine.start_kubelet()


@fault()
def containerd_is_killed(world: World) -> Iterator[None]:
    """Containerd is killed; its containers run on."""
    machine = world.cluster.machines[0]
    machine.containerd.end(signal.SIGKILL)
    yield
    time.sleep(_AWAY)
    machine.runtime.start()


@fault()
def machine_is_cut_off(world: World) -> Iterator[None]:
    """A machine loses its network for so long that its node is NotReady."""
    machine = world.cluster.machines[0]
    machine.disconnect()
    yield
    time.sleep(NOT_READY + 15)
    machine.connect()


@fault(bound=1.5 * SETTLE)
def machine_reboots(world: World) -> Iterator[None]:
    """A machine loses its power, and boots; devices appear after the kubelet."""
    machine = world.cluster.machines[0]
    world.touched.add(machine.name)
    machine.shut_down()
    yield
    time.sleep(_AWAY)
    machine.boot(world.cluster.parts.kubernetes)
    time.sleep(_AWAY)
    machine.device_tool("create", "--stand-ins", "--count", str(DEVICES))


@fault()
def node_is_drained(world: World) -> Iterator[None]:
    """A node is drained, and uncordoned later."""
    machine = world.cluster.machines[0]
    world.touched.add(machine.name)
    world.cluster.kubectl("drain", machine.name, "--ignore-daemonsets", "--force", "--timeout=60s", seconds=PATIENT)
    yield
    world.cluster.kubectl("uncordon", machine.name)


@fault()
def plugin_is_killed(world: World) -> Iterator[None]:
    """The plugin is killed, terminated and killed, one after the other; the kubelet restarts its container."""
    machine = world.cluster.machines[1]

    def kill(name: str) -> bool:
        # The process has another ID in this PID namespace.
        machine.run("kill", f"-{name}", world.plugin_container(machine).process.name)
        return True

    for name in ("KILL", "TERM", "KILL"):
        until(lambda name=name: kill(name), "the plugin gets a signal", seconds=120)  # type: ignore[misc]
        time.sleep(1)
    yield


@fault()
def plugin_pod_is_deleted(world: World) -> Iterator[None]:
    """The plugin's pod is deleted by force."""
    pod = plugin.pod_on(world.cluster, world.cluster.machines[1])
    world.cluster.api.delete(f"{plugin.PODS}/{pod['metadata']['name']}", gracePeriodSeconds="0")
    yield


@fault()
def devices_vanish(world: World) -> Iterator[None]:
    """Most binder devices of a machine vanish, for longer than they count for its capacity, and return."""
    machine = world.cluster.machines[2]
    paths = [machine.root / f"dev/{PREFIX}{number}" for number in range(1, DEVICES)]
    for path in paths:
        path.unlink()
    yield
    time.sleep(2 * _AWAY)
    for path in paths:
        os.mknod(path, stat.S_IFCHR | 0o666, _STAND_IN)


@fault()
def phones_are_deleted(world: World) -> Iterator[None]:
    """Some phones are deleted by force; their controllers create others."""
    names = [str(pod["metadata"]["name"]) for pod in world.pods()[::3]]
    world.deleted |= set(names)
    for name in names:
        world.cluster.api.delete(f"{phones.collection('Pod')}/{name}", gracePeriodSeconds="0")
    yield


def step(world: World, faults: Sequence[Fault]) -> None:
    """Let faults happen at once, and wait until all invariants hold.

    Raises AssertionError if they do not hold in time, or if phones were disturbed that no fault has touched.
    """
    before = world.phones()
    with contextlib.ExitStack() as lasting:
        for each in faults:
            lasting.enter_context(each.inject(world))
    time.sleep(_EFFECT)
    invariants.settle(world.cluster, seconds=max(each.bound for each in faults), tend=world.tend)
    problems = world.problems(before)
    assert not problems, "; ".join(problems)
