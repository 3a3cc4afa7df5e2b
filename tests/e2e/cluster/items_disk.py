"""A disk of a node that is full: what becomes of phones and plugin."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import held, load, phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_failures import plugin_run, readyz
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import PATIENCE, holds, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.cluster.cluster import Cluster

item = Items()

_SIZE: Final = "64m"
_LARGEST: Final = 512 << 20
"""Bytes of a file system that is filled."""
_WEB: Final = 4
_PERIOD: Final = 5
"""Seconds without a lack of space after which the kubelet ends DiskPressure; its default is five minutes."""


@contextlib.contextmanager
def small_disk(cluster: Cluster, threshold: str) -> Iterator[None]:
    """Boot the first machine with a small disk below the kubelet and the logs, with a plugin; boot it as usual later.

    ``threshold`` is the free space below which the kubelet evicts pods.
    """
    machine = cluster.machine
    usual = dict(machine.configuration)
    machine.configuration |= {
        "evictionHard": usual["evictionHard"] | {"nodefs.available": threshold},
        "evictionPressureTransitionPeriod": f"{_PERIOD}s",
    }
    try:
        _boot(cluster, _SIZE)
        yield
    finally:
        machine.configuration = usual
        plugin.uninstall(cluster)
        _boot(cluster, "")


def _boot(cluster: Cluster, disk: str) -> None:
    machine = cluster.machine
    machine.shut_down()
    machine.disk = disk
    booted = cluster.api.get(f"{CORE}/nodes/{machine.name}")["status"]["nodeInfo"]["bootID"]
    machine.boot(cluster.parts.kubernetes, lambda: cluster.load_images(machine))
    until(lambda: _boot_id(cluster) != booted, f"{machine.name} has booted")
    cluster.wait_node(machine)
    load.prepare(cluster)


def _boot_id(cluster: Cluster) -> str:
    return str(cluster.api.get(f"{CORE}/nodes/{cluster.machine.name}")["status"]["nodeInfo"]["bootID"])


@contextlib.contextmanager
def filled(directory: Path) -> Iterator[None]:
    """Fill a file system while the context lasts. Raises AssertionError if it is not a small one of the machine."""
    usage = os.statvfs(directory)
    size = usage.f_blocks * usage.f_frsize
    assert size <= _LARGEST, f"{directory} is on a file system of {size >> 20} MiB, such as the host's"
    path = directory / "filling"
    with path.open("wb", buffering=0) as file:
        for length in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(length))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    try:
        yield
    finally:
        path.unlink()


@item("A full disk without eviction: phones and plugin stay, new phones start when there is space again")
def full_disk_without_eviction(cluster: Cluster) -> None:
    with small_disk(cluster, "0%"):
        _survives(cluster, cluster.machine.root / "var/lib/kubelet")


@item("A full /run: phones and plugin stay, new phones start when there is space again")
def full_run(cluster: Cluster) -> None:
    load.prepare(cluster)
    run = cluster.machine.root / "run"
    usage = os.statvfs(run)
    used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    cluster.machine.run("mount", "-o", f"remount,size={used + (1 << 20)}", "/run")
    try:
        _survives(cluster, run)
    finally:
        cluster.machine.run("mount", "-o", "remount,size=50%", "/run")
        load.clean_up(cluster)


def _survives(cluster: Cluster, directory: Path) -> None:
    """Fill a file system while phones run; create a phone; make space again."""
    machine = cluster.machine
    phones.create(cluster, phones.deployment("web", _WEB))
    try:
        phones.wait_running(cluster, "web", _WEB)
        before, devices = plugin_run(cluster), held.devices_by_pod(machine)
        with filled(directory):
            phones.create(cluster, phones.deployment("late", 1))
            holds(lambda: held.devices_by_pod(machine).items() >= devices.items(), "phones keep devices", seconds=15)
            say(f"#   a new phone: {[phones.reason(pod) for pod in phones.of(cluster, 'late')]}")
            say(f"#   events: {_warnings(cluster, 'late')}")
            assert "devices allocatable" in readyz(cluster), readyz(cluster)
            machine.nodes("create", "--stand-ins", "--count", str(plugin.SIZE * (load.PHONES + 1)))
            until(
                lambda: f"{load.PHONES + 1} of {load.PHONES + 1} healthy devices" in readyz(cluster), "one more device"
            )
        freed = time.monotonic()
        phones.wait_running(cluster, "late", 1, seconds=3 * PATIENCE)
        say(f"#   the new phone runs {time.monotonic() - freed:.0f} s after there was space")
        assert plugin_run(cluster) == before
        assert held.devices_by_pod(machine).items() >= devices.items()
        plugin.wait_allocatable(cluster, machine, load.PHONES + 1)
    finally:
        phones.remove(cluster, "Deployment", "late")
        phones.remove(cluster, "Deployment", "web")


def _warnings(cluster: Cluster, app: str) -> set[str]:
    events = cluster.api.list(f"{CORE}/namespaces/{phones.DEFAULT}/events", fieldSelector="type=Warning")
    names = {pod["metadata"]["name"] for pod in phones.of(cluster, app)}
    return {
        f"{event['reason']}: {event['message'][:200]}"
        for event in events
        if event["involvedObject"]["name"] in names and event["reason"] != "MissingClusterDNS"
    }
