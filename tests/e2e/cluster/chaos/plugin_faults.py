"""Faults of the plugin: its process, its pod, its socket, its configuration."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from tests.e2e.cluster import plugin
from tests.e2e.cluster.chaos.registry import fault
from tests.e2e.cluster.chaos.world import PATIENT
from tests.e2e.kubelet.standalone import PLUGINS
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.cluster.chaos.world import World
    from tests.e2e.cluster.machine import Machine


@fault("plugin", weight=6)
def plugin_is_killed(world: World, rng: random.Random) -> Iterator[str]:
    """The plugin is killed or terminated, once or three times in a row; the kubelet restarts its container."""
    machine = world.machine(rng)
    count = rng.choice((1, 1, 3))
    for _ in range(count):
        _signal(world, machine, rng.choice((signal.SIGKILL, signal.SIGTERM)))
        time.sleep(rng.uniform(0.2, 3))
    yield f"{machine.name}, {count} times"


@fault("plugin", weight=3)
def plugin_stops(world: World, rng: random.Random) -> Iterator[str]:
    """The plugin stops for some seconds (SIGSTOP)."""
    machine = world.machine(rng)
    _signal(world, machine, signal.SIGSTOP)
    yield machine.name
    time.sleep(rng.uniform(1, 15))
    _signal(world, machine, signal.SIGCONT)


@fault("plugin", weight=3)
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


@fault("plugin", weight=3)
def own_socket_is_deleted(world: World, rng: random.Random) -> Iterator[str]:
    """The plugin's socket is deleted."""
    machine = world.machine(rng)
    for path in _sockets(machine):
        path.unlink(missing_ok=True)
    yield machine.name


@fault("plugin")
def own_socket_is_replaced(world: World, rng: random.Random) -> Iterator[str]:
    """A file replaces the plugin's socket, and is deleted too."""
    machine = world.machine(rng)
    replaced = []
    for path in _sockets(machine):
        path.unlink(missing_ok=True)
        path.write_text("")
        replaced.append(path)
    yield machine.name
    for path in replaced:
        path.unlink(missing_ok=True)


@fault("plugin", weight=3)
def plugin_is_rolled_out(world: World, rng: random.Random) -> Iterator[str]:
    """The plugin is updated with a changed configuration, node by node."""
    world.configurations += 1
    until(lambda: plugin.upgrade(world.cluster, world.values()), "the plugin is updated", seconds=PATIENT)
    yield f"missing_device_ttl {world.values()['config']['missing_device_ttl']}"
    del rng


@fault("plugin")
def all_plugins_are_killed(world: World, rng: random.Random) -> Iterator[str]:
    """The plugins of all machines are killed at once."""
    for machine in world.cluster.machines:
        _signal(world, machine, signal.SIGKILL)
    yield "all machines"
    del rng


def _signal(world: World, machine: Machine, number: signal.Signals) -> None:
    """Send a signal to the plugin of a machine as soon as it runs."""

    def send() -> bool:
        # The process has another ID in this PID namespace.
        container = world.plugin_container(machine)
        machine.run("kill", f"-{number.name.removeprefix('SIG')}", container.process.name)
        return True

    if machine.running:
        until(send, f"the plugin of {machine.name} gets {number.name}", seconds=120)


def _sockets(machine: Machine) -> list[Path]:
    directory = machine.root / str(PLUGINS).lstrip("/")
    return [directory / name for name in os.listdir(directory) if name.startswith("aosp")]
