"""Measurements in the guest: phones with a binderfs each, beside as many of found devices, three to a phone.

``python -m tests.e2e.kernel phones-bench`` prints a table for each number of phones. Both kinds run one after the other
in the same guest, against the same stand-in kubelet, which shares the guest's CPU. So the columns compare; in software
emulation the times are those of no real machine.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from kubelet_standin import Container, Pod
from tests.e2e.common.report import say
from tests.e2e.kernel import phones
from tests.e2e.kernel.item import Item
from tests.e2e.kernel.phones import NAMES, RESOURCE, path
from tests.e2e.kernel.world import BINDERFS, PATIENCE, checked_binder_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.kernel.world import World

COUNTS: Final = (120, 1000)
_STARTS: Final = 3
_HOTPLUGS: Final = 20
_CONTAINERS: Final = 100
_IDLE: Final = 30.0
"""Seconds."""
_BUSY: Final = 0.1
"""Seconds of CPU time in two seconds; less means that the plugin is idle."""

_FOUND: Final = f"""\
resource_name: {RESOURCE}
sets: {{size: 3}}
container_paths: [{", ".join(f"/dev/{name}" for name in NAMES)}]
recreate: on-start
verify: binder
"""


@dataclass
class Subject:
    """A plugin with phones of one kind, and its figures by name."""

    world: World
    count: int
    figures: dict[str, str] = field(default_factory=dict)

    async def start(self, configuration: str) -> float:
        """Start the plugin, and return the seconds until the kubelet has all phones."""
        before = time.monotonic()
        await self.world.serve_with(configuration, resource=RESOURCE)
        await self.world.healthy(self.count)
        seconds = time.monotonic() - before
        await self.settle()
        return seconds

    async def until(self, device: str, health: str, messages: int) -> None:
        """Wait until the kubelet has this health of a device, in a later message than its first ``messages``."""

        def reached() -> bool:
            view = self.world.kubelet.resource(RESOURCE)
            return view.messages > messages and view.devices.get(device) == health

        await self.world.kubelet.wait_for(lambda _: reached(), PATIENCE)

    def cpu(self) -> float:
        """Return the CPU time of the plugin's threads, in seconds."""
        return sum(int(file.read_text().split()[0]) for file in self._process.glob("task/*/schedstat")) / 1e9

    async def settle(self) -> None:
        """Wait until the plugin has done what follows its start, which takes long in software emulation."""
        used, before = _BUSY, self.cpu()
        while used >= _BUSY:
            await asyncio.sleep(2)
            used, before = self.cpu() - before, self.cpu()

    def memory(self, name: str) -> str:
        """Return a figure of the plugin's memory."""
        lines = (self._process / "status").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
        return f"{kilobytes / 1024:.1f} MiB"

    @property
    def _process(self) -> Path:
        assert self.world.process is not None
        return Path(f"/proc/{self.world.process.pid}")


async def measured(world: World, count: int) -> None:
    """Print start, memory, hotplug, PreStartContainer and CPU of both kinds."""
    columns = {f"{count} phones": await _phones(world, count), f"{3 * count} found devices": await _found(world, count)}
    say("| figure | " + " | ".join(columns) + " |")
    say("|---|" + "---|" * len(columns))
    for name in next(iter(columns.values())):
        say(f"| {name} | " + " | ".join(figures.get(name, "-") for figures in columns.values()) + " |")


async def _phones(world: World, count: int) -> dict[str, str]:
    subject, configuration = Subject(world, count), f"phones: {{count: {count}}}\n"
    unprepared = []
    for _ in range(_STARTS):
        await world.stop()
        if phones.mounted():
            phones.unmount_all()
        unprepared.append(await subject.start(configuration))
    subject.figures["start on an unprepared host until listed"] = _seconds(unprepared)
    last = f"phone{count - 1}"
    await _common(subject, configuration, last, lambda: binderfs.unmount(path(last)), lambda: None)
    await world.stop()
    phones.unmount_all()
    return subject.figures


async def _found(world: World, count: int) -> dict[str, str]:
    await checked_binder_nodes("create", "--count", str(3 * count))
    subject = Subject(world, count)
    subject.figures["start on an unprepared host until listed"] = "-"
    await subject.start(_FOUND)
    # The view has the phones by their IDs, in the order of their numbers.
    last, name = list(world.kubelet.resource(RESOURCE).devices)[-1], f"aosp_binder{3 * count - 1}"

    def add() -> None:
        binderfs.add_device(BINDERFS, name)
        os.chmod(f"{BINDERFS}/{name}", 0o666)

    await _common(subject, _FOUND, last, lambda: binderfs.remove_device(BINDERFS, name), add)
    await world.stop()
    await checked_binder_nodes("delete")
    return subject.figures


async def _common(
    subject: Subject, configuration: str, device: str, remove: Callable[[], object], restore: Callable[[], object]
) -> None:
    """Measure what both kinds have. ``remove`` makes ``device`` unhealthy, and ``restore`` healthy again."""
    figures, world = subject.figures, subject.world
    figures["start until listed, devices in place"] = _seconds([await subject.start(configuration) for _ in range(3)])
    before = subject.cpu()
    await asyncio.sleep(_IDLE)
    figures["CPU while idle"] = f"{(subject.cpu() - before) / _IDLE * 1000:.2f} ms/s"
    figures["memory (RSS) once listed"] = subject.memory("VmRSS")
    gone, back = [], []
    before = subject.cpu()
    for _ in range(_HOTPLUGS):
        messages, began = world.kubelet.resource(RESOURCE).messages, time.monotonic()
        remove()
        await subject.until(device, "Unhealthy", messages)
        gone.append(time.monotonic() - began)
        began = time.monotonic()
        restore()
        await subject.until(device, "Healthy", messages)
        back.append(time.monotonic() - began)
    figures["removed or unmounted until the kubelet knows"] = _milliseconds(gone)
    figures["healthy again at the kubelet"] = _milliseconds(back)
    figures["CPU for each of these pairs"] = f"{(subject.cpu() - before) / _HOTPLUGS * 1000:.1f} ms"
    # The kubelet remembers which phone a pod had.
    pod = Pod(f"with-{device}", [Container("main", {RESOURCE: 1})])
    await world.kubelet.admit(pod)
    starts = []
    before = subject.cpu()
    for _ in range(_CONTAINERS):
        began = time.monotonic()
        await world.kubelet.start_container(pod, "main")
        starts.append(time.monotonic() - began)
    await asyncio.sleep(2)
    figures["PreStartContainer with recreation"] = _milliseconds(starts)
    figures["CPU for each of these"] = f"{(subject.cpu() - before) / _CONTAINERS * 1000:.1f} ms"
    figures["memory (RSS) at the end"] = subject.memory("VmRSS")
    await world.kubelet.finish(pod)


def _seconds(samples: list[float]) -> str:
    return f"{statistics.median(samples):.2f} s"


def _milliseconds(samples: list[float]) -> str:
    p50, p99 = statistics.median(samples), statistics.quantiles(samples, n=100, method="inclusive")[98]
    return f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms"


ITEMS: Final[list[Item[World]]] = [
    Item(f"{count} phones of each kind are measured", partial(measured, count=count)) for count in COUNTS
]
