"""The faults: of the control plane, of machines, of plugins, of binder devices, and of the phones."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import invariants, phones, plugin
from tests.e2e.cluster.chaos.world import PATIENT
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.cluster.invariants import SETTLE
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from tests.e2e.cluster.chaos.world import World

    Inject = Callable[[World, random.Random], Iterator[str]]

NOT_READY: Final = 50.0
"""Seconds without a heartbeat after which a node is NotReady (node-monitor-grace-period)."""
_EFFECT: Final = 1.0
"""Seconds from the end of the faults to the first check: some have an effect only then."""
_STAND_IN: Final = os.makedev(1, 3)


@dataclass(frozen=True)
class Fault:
    """A fault."""

    name: str
    place: str
    """At most one fault of a place happens in a step."""
    inject: Callable[[World, random.Random], AbstractContextManager[str]]
    """A context manager: the fault happens at entry, and yields what it affects; its exit ends it."""
    weight: int
    bound: float
    """The seconds after the end within which the invariants must hold again."""


FAULTS: Final[dict[str, Fault]] = {}


def fault(place: str, weight: int, bound: float = SETTLE) -> Callable[[Inject], Inject]:
    """Register a generator function as a fault."""

    def register(inject: Inject) -> Inject:
        name = inject.__name__.replace("_", " ")
        FAULTS[name] = Fault(name, place, contextlib.contextmanager(inject), weight, bound)
        return inject

    return register


@fault("control plane", 8)
def control_plane_is_killed(world: World, rng: random.Random) -> Iterator[str]:
    """One or all programs of the control plane are killed, and restarted at once or after some seconds."""
    plane = world.cluster.control_plane
    daemons = plane.daemons if rng.random() < 0.15 else [rng.choice(plane.daemons)]
    for daemon in daemons:
        daemon.end(signal.SIGKILL)
    yield ", ".join(daemon.name for daemon in daemons)
    time.sleep(rng.choice((0, rng.uniform(1, 15))))
    plane.start()


@fault("machine", 6)
def kubelet_is_killed(world: World, rng: random.Random) -> Iterator[str]:
    """A kubelet is killed, and restarted at once or after some seconds."""
    machine = world.machine(rng)
    machine.kubelet.end(rng.choice((signal.SIGKILL, signal.SIGTERM)))
    yield machine.name
    time.sleep(rng.choice((0, rng.uniform(1, 15))))
    machine.start_kubelet()


@fault("machine", 4)
def containerd_is_killed(world: World, rng: random.Random) -> Iterator[str]:
    """Containerd is killed, and restarted at once or after some seconds; its containers run on."""
    machine = world.machine(rng)
    machine.containerd.end(signal.SIGKILL)
    yield machine.name
    time.sleep(rng.choice((0, rng.uniform(1, 10))))
    machine.runtime.start()


@fault("machine", 4)
def machine_is_cut_off(world: World, rng: random.Random) -> Iterator[str]:
    """A machine loses its network for some seconds, or for so long that its node is NotReady."""
    machine = world.machine(rng)
    machine.disconnect()
    seconds = NOT_READY + 15 if rng.random() < 0.25 else rng.uniform(2, 20)
    yield f"{machine.name}, {seconds:.0f} s"
    time.sleep(seconds)
    machine.connect()


@fault("machine", 4, bound=1.5 * SETTLE)
def machine_reboots(world: World, rng: random.Random) -> Iterator[str]:
    """A machine loses its power, and boots at once or after some seconds; devices appear after the kubelet."""
    machine = world.machine(rng, touch=True)
    machine.shut_down()
    yield machine.name
    time.sleep(rng.choice((0, rng.uniform(1, 30))))
    machine.boot(world.cluster.parts.kubernetes)
    time.sleep(rng.uniform(0, 5))
    machine.nodes("create", "--stand-ins", "--count", str(DEVICES))


@fault("machine", 3)
def node_is_drained(world: World, rng: random.Random) -> Iterator[str]:
    """A node is drained, and uncordoned later. Another fault may have taken the API server away."""
    kubectl, machine = world.cluster.kubectl, world.machine(rng, touch=True)
    words = ("drain", machine.name, "--ignore-daemonsets", "--force", "--timeout=60s")
    until(lambda: kubectl(*words) is not None, "drain", seconds=PATIENT)
    yield machine.name
    until(lambda: kubectl("uncordon", machine.name) is not None, "uncordon", seconds=PATIENT)


@fault("plugin", 6)
def plugin_is_killed(world: World, rng: random.Random) -> Iterator[str]:
    """The plugin is killed or terminated, once or three times in a row; the kubelet restarts its container."""
    machine, count = world.machine(rng), rng.choice((1, 1, 3))

    def kill(name: str) -> bool:
        # The process has another ID in this PID namespace.
        machine.run("kill", f"-{name}", world.plugin_container(machine).process.name)
        return True

    for _ in range(count):
        name = rng.choice(("KILL", "TERM"))
        if machine.running:
            until(lambda name=name: kill(name), "the plugin gets a signal", seconds=120)  # type: ignore[misc]
        time.sleep(rng.uniform(0.2, 3))
    yield f"{machine.name}, {count} times"


@fault("plugin", 3)
def plugin_pod_is_deleted(world: World, rng: random.Random) -> Iterator[str]:
    """The plugin's pod is deleted, with its grace period or by force."""
    machine = world.machine(rng)
    query = rng.choice(({}, {"gracePeriodSeconds": "0"}))

    def delete() -> bool:
        pod = plugin.pod_on(world.cluster, machine)
        world.cluster.api.delete(f"{plugin.PODS}/{pod['metadata']['name']}", **query)
        return True

    until(delete, "the plugin's pod is deleted", seconds=120)
    yield f"{machine.name}, {'by force' if query else 'gracefully'}"


@fault("devices", 6)
def devices_vanish(world: World, rng: random.Random) -> Iterator[str]:
    """Some or all binder devices of a machine vanish, and return when the step ends."""
    machine = world.machine(rng)
    paths = [machine.root / f"dev/{PREFIX}{number}" for number in range(DEVICES)]
    paths = rng.sample(paths, rng.choice((rng.randint(1, 7), DEVICES)))
    for path in paths:
        path.unlink(missing_ok=True)
    yield f"{machine.name}, {len(paths)}"
    time.sleep(rng.uniform(0, 12))
    for path in paths:
        os.mknod(path, stat.S_IFCHR | 0o666, _STAND_IN)


@fault("phones", 6)
def phones_are_deleted(world: World, rng: random.Random) -> Iterator[str]:
    """Some phones are deleted, with their grace period or by force; their controllers create others."""
    query = rng.choice(({}, {"gracePeriodSeconds": "0"}))
    pods = world.pods()
    names = [str(pod["metadata"]["name"]) for pod in rng.sample(pods, min(len(pods), rng.randint(1, 5)))]
    world.deleted |= set(names)

    def deleted(name: str) -> bool:
        world.cluster.api.delete(f"{phones.collection('Pod')}/{name}", **query)
        return True

    for name in names:
        until(lambda name=name: deleted(name), f"{name} is deleted", seconds=PATIENT)  # type: ignore[misc]
    yield f"{len(names)} {'by force' if query else 'gracefully'}"


def step(world: World, faults: Sequence[Fault], rng: random.Random) -> tuple[str, float]:
    """Let faults happen at once, and wait until all invariants hold; return what happened, and the seconds.

    Raises AssertionError if they do not hold in time, or if phones were disturbed that no fault has touched.
    """
    world.begin()
    texts = []
    with contextlib.ExitStack() as lasting:
        for each in faults:
            own = random.Random(rng.random())  # noqa: S311 - repeatable, not secret
            texts.append(f"{each.name} ({lasting.enter_context(each.inject(world, own))})")
    time.sleep(_EFFECT)
    bound = max(each.bound for each in faults)
    seconds = invariants.settle(world.cluster, seconds=bound, tend=world.tend)
    problems = world.problems()
    assert not problems, f"{'; '.join(texts)}: {'; '.join(problems)}"
    return "; ".join(texts), seconds
