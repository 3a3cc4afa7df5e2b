"""The faults of ``demo --stay``, and the keys that cause them. Most keys end their fault when pressed again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from typing import TYPE_CHECKING

from aosp_plugin.cli.demo.phones import BINDER_DEVICES, RESOURCE, Phones

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aosp_plugin.cli.demo.plugin import PluginProcess
    from aosp_plugin.cli.demo.tenants import Tenants
    from kubelet_standin import Kubelet

PAUSE = 3.0
"""Seconds that a killed plugin stays away."""
LEAK_DURATION = 24 * 3600


class Faults:
    """Causes and ends faults on request."""

    def __init__(
        self,
        phones: Phones,
        kubelet: Kubelet,
        tenants: Tenants,
        new_plugin: Callable[[int], PluginProcess],
        seed: int,
        report: Callable[[str], None],
    ) -> None:
        """``new_plugin`` returns the process of the first or second plugin of the resource, not started yet.

        ``report`` is called with a description of each fault.
        """
        self.caused = 0
        """The number of faults and ends of faults."""
        self.plugin = new_plugin(1)
        self._new_plugin = new_plugin
        self._second: PluginProcess | None = None
        self._phones = phones
        self._kubelet = kubelet
        self._tenants = tenants
        self._rng = random.Random(f"{seed} faults")  # noqa: S311 - repeatable, not secret
        self._report = report
        self._missing: dict[str, tuple[str, ...]] = {}
        self._leak: tuple[str, asyncio.subprocess.Process] | None = None
        self.keys: Mapping[str, tuple[str, Callable[[], Awaitable[None]]]] = {
            "v": ("a phone vanishes with its three binder devices; again: it returns", self._vanish),
            "i": ("a device set becomes incomplete: hwbinder of a phone vanishes; again: it returns", self._incomplete),
            "d": ("the device directory vanishes with all phones; again: it returns", self._directory),
            "l": ("a process outside all pods opens a free phone, a leak; again: it ends", self._leaked),
            "2": ("a second plugin registers the same resource; again: it stops", self._second_plugin),
            "p": (f"the plugin is killed, and starts again after {PAUSE:g} s", self._kill),
            "k": ("the kubelet restarts", self._restart),
        }
        """What each key does, and its function."""

    async def cause(self, key: str) -> None:
        """Execute a key of ``keys``."""
        self.caused += 1
        await self.keys[key][1]()

    async def aclose(self) -> None:
        """End all processes."""
        await self._end_leak()
        for plugin in (self.plugin, self._second):
            if plugin is not None:
                await plugin.kill()

    async def _vanish(self) -> None:
        self._toggle(BINDER_DEVICES)

    async def _incomplete(self) -> None:
        self._toggle(("hwbinder",))

    def _toggle(self, devices: tuple[str, ...]) -> None:
        """Remove these binder devices from a phone, or create them again if they are away."""
        away = [phone for phone, missing in self._missing.items() if missing == devices]
        what = "all binder devices" if devices == BINDER_DEVICES else devices[0]
        if away:
            del self._missing[away[0]]
            for device in devices:
                self._phones.create(away[0], device)
            self._report(f"{away[0]}: {what} created again")
            return
        phone = self._rng.choice([name for name in self._phones.names if name not in self._missing])
        self._missing[phone] = devices
        self._report(f"{phone}: {what} removed ({self._owner(phone)})")
        for device in devices:
            self._phones.remove(phone, device)

    def _owner(self, phone: str) -> str:
        pod = self._kubelet.allocated(RESOURCE).get(phone)
        return f"allocated to {pod[0]}" if pod else "free"

    async def _directory(self) -> None:
        if self._phones.hidden:
            self._report(f"{self._phones.directory} is back")
            self._phones.show()
        else:
            self._report(f"{self._phones.directory} is renamed: all phones are missing")
            self._phones.hide()

    async def _leaked(self) -> None:
        if self._leak is not None:
            self._report(f"process {self._leak[1].pid} ends, which holds {self._leak[0]} open")
            await self._end_leak()
            return
        allocated = self._kubelet.allocated(RESOURCE)
        free = [name for name in self._phones.names if name not in allocated and name not in self._missing]
        if not free:
            self._report("no phone is free, so that none can be leaked")
            return
        phone = self._rng.choice(free)
        descriptor = os.open(self._phones.path(phone, "binder"), os.O_RDWR)
        try:
            # A process group of its own: Ctrl-C in a terminal does not end it.
            process = await asyncio.create_subprocess_exec(
                "sleep", str(LEAK_DURATION), stdin=descriptor, process_group=0
            )
        finally:
            os.close(descriptor)
        self._leak = phone, process
        self._report(f"process {process.pid} opens {phone}/binder; the plugin looks for leaks every 2 s")

    async def _end_leak(self) -> None:
        if self._leak is not None:
            with contextlib.suppress(ProcessLookupError):
                self._leak[1].kill()
            await self._leak[1].wait()
            self._leak = None

    async def _second_plugin(self) -> None:
        if self._second is None:
            self._report(f"a second plugin of {RESOURCE} starts")
            self._second = self._new_plugin(2)
            await self._second.start()
        else:
            self._report("the second plugin stops")
            await self._second.stop()
            self._second = None

    async def _kill(self) -> None:
        self._report(f"the plugin is killed, and starts again after {PAUSE:g} s")
        killed, self.plugin = self.plugin, self._new_plugin(1)
        await killed.kill()
        await asyncio.sleep(PAUSE)
        await self.plugin.start()

    async def _restart(self) -> None:
        self._report("the kubelet restarts")
        async with self._tenants.lock:
            await self._kubelet.restart()
