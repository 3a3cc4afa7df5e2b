"""Faults of the control plane: its programs end, stop for a while, or are away for a while."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.e2e.cluster.chaos.registry import fault

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.e2e.cluster.chaos.world import World
    from tests.e2e.kubelet.processes import Daemon


def _chosen(world: World, rng: random.Random) -> list[Daemon]:
    """Return one of the four programs, or all of them."""
    daemons = world.cluster.control_plane.daemons
    return list(daemons) if rng.random() < 0.15 else [rng.choice(daemons)]


@fault("control plane", weight=8)
def control_plane_is_killed(world: World, rng: random.Random) -> Iterator[str]:
    """Programs of the control plane are killed, and restarted at once or after some seconds."""
    daemons = _chosen(world, rng)
    for daemon in daemons:
        daemon.end(signal.SIGKILL)
    yield ", ".join(daemon.name for daemon in daemons)
    time.sleep(rng.choice((0, rng.uniform(1, 15))))
    world.cluster.control_plane.start()


@fault("control plane", weight=5)
def control_plane_stops(world: World, rng: random.Random) -> Iterator[str]:
    """Programs of the control plane stop for some seconds (SIGSTOP)."""
    daemons = _chosen(world, rng)
    for daemon in daemons:
        daemon.suspend()
    yield ", ".join(daemon.name for daemon in daemons)
    time.sleep(rng.uniform(1, 12))
    for daemon in daemons:
        daemon.resume()
    world.cluster.control_plane.wait_ready()
