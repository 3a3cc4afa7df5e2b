"""Faults of binder devices, and of the phones that use them."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import phones
from tests.e2e.cluster.chaos.registry import fault
from tests.e2e.cluster.chaos.world import DEPLOYMENT, MOST
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.cluster.chaos.world import World
    from tests.e2e.cluster.machine import Machine

_STAND_IN: Final = os.makedev(1, 3)


def _all(machine: Machine) -> list[Path]:
    return [machine.root / f"dev/{PREFIX}{number}" for number in range(DEVICES)]


def _remove(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _create(path: Path) -> None:
    _remove(path)
    os.mknod(path, stat.S_IFCHR | 0o666, _STAND_IN)


@fault("devices", weight=6)
def devices_vanish(world: World, rng: random.Random) -> Iterator[str]:
    """Some binder devices vanish, and return when the step ends."""
    machine = world.machine(rng)
    paths = rng.sample(_all(machine), rng.randint(1, 7))
    for path in paths:
        _remove(path)
    yield f"{machine.name}, {len(paths)}"
    time.sleep(rng.uniform(0, 12))
    for path in paths:
        _create(path)


@fault("devices", weight=2)
def all_devices_vanish(world: World, rng: random.Random) -> Iterator[str]:
    """All binder devices of a machine vanish, for longer or shorter than they stay in its capacity."""
    machine = world.machine(rng)
    for path in _all(machine):
        _remove(path)
    yield machine.name
    time.sleep(rng.uniform(0, 12))
    for path in _all(machine):
        _create(path)


@fault("devices", weight=2)
def devices_flap(world: World, rng: random.Random) -> Iterator[str]:
    """A binder device is deleted and created a hundred times."""
    path = rng.choice(_all(machine := world.machine(rng)))
    for _ in range(100):
        _remove(path)
        _create(path)
        time.sleep(0.01)
    yield f"{machine.name}, {path.name}"


@fault("devices", weight=2)
def devices_become_other_files(world: World, rng: random.Random) -> Iterator[str]:
    """Pipes, files, directories or dangling links replace some binder devices, which return when the step ends."""
    machine = world.machine(rng)
    paths = rng.sample(_all(machine), rng.randint(1, 3))
    for path in paths:
        _remove(path)
        match rng.randrange(4):
            case 0:
                os.mkfifo(path)
            case 1:
                path.mkdir()
            case 2:
                path.touch()
            case _:
                path.symlink_to("nothing")
    yield f"{machine.name}, {len(paths)}"
    time.sleep(rng.uniform(0, 5))
    for path in paths:
        _create(path)


@fault("phones", weight=6)
def phones_are_deleted(world: World, rng: random.Random) -> Iterator[str]:
    """Some phones are deleted, with their grace period or by force; their controllers create others."""
    query = rng.choice(({}, {"gracePeriodSeconds": "0"}))
    path = phones.collection("Pod")
    pods = until(lambda: [*world.cluster.api.list(path), {}], "the pods are listed", seconds=120)[:-1]
    names = [str(pod["metadata"]["name"]) for pod in rng.sample(pods, min(len(pods), rng.randint(1, 5)))]
    world.deleted |= set(names)
    for name in names:
        world.delete(f"{path}/{name}", **query)
    yield f"{len(names)} {'by force' if query else 'gracefully'}"


@fault("phones", weight=6)
def phones_are_scaled(world: World, rng: random.Random) -> Iterator[str]:
    """The Deployment gets another number of replicas, possibly more than there are phones for."""
    count = rng.randint(2, MOST)
    world.scaled = True
    path = f"{phones.collection('Deployment')}/{DEPLOYMENT}"
    body = {"spec": {"replicas": count}}
    until(lambda: world.cluster.api.patch(path, body), "the Deployment is scaled", seconds=120)
    yield f"to {count}"
