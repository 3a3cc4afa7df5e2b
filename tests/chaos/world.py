"""The state that faults change: directories, devices, a kubelet, and the plugin's process and configuration."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubelet_standin import Kubelet, KubeletVersion, PodResources
from tests.chaos.expected import MISSING_DEVICE_TTL, Model
from tests.chaos.files import DeviceDirectory
from tests.chaos.monitor import Monitor
from tests.chaos.plugin import Plugin
from tests.chaos.pods import Pods
from tests.support import free_port, sockets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.chaos.setups import Setup

FIRST_DEVICES = range(24)
FIRST_LINKS = range(100, 108)


class World:
    """The state of one seed, with the operations that faults use."""

    def __init__(self, root: str, setup: Setup, version: KubeletVersion, seed: int) -> None:
        self.root = root
        self.setup = setup
        self.seed = seed
        self.plugins = os.path.join(root, "kubelet", "plugins")
        """The kubelet's directory, which faults can move."""
        self.cdi = os.path.join(root, "cdi")
        self.port = free_port()
        self.devices = DeviceDirectory(
            os.path.join(root, "dev"), os.path.join(root, "targets"), [served.prefix for served in setup.served]
        )
        self.model = Model(setup.served, self.devices)
        self.pods = Pods(self)
        self.kubelet = self._kubelet(version)
        self.kubelet_runs = False
        self.monitor = Monitor(self)
        self._pod_resources = PodResources(self.kubelet, os.path.join(root, "podresources.sock"))
        self._configuration = os.path.join(root, "config.yaml")
        self.plugin = Plugin(self._configuration, os.path.join(root, "log"))
        self._keys: dict[str, Any] = {}

    async def start(self) -> None:
        """Create the first devices, and start kubelet and plugin."""
        os.makedirs(self.plugins)
        for prefix in self.devices.prefixes:
            for number in FIRST_DEVICES:
                self.devices.make(f"{prefix}{number}")
            for number in FIRST_LINKS:
                self.devices.link(f"{prefix}{number}")
        self.configure()
        await self._pod_resources.__aenter__()
        await self.start_kubelet()
        await self.plugin.start()

    async def close(self) -> None:
        """Stop plugin and kubelet."""
        await self.plugin.close()
        await self._pod_resources.__aexit__(None, None, None)
        await self.stop_kubelet()

    def configure(self, **keys: Any) -> None:
        """Write the configuration file, with these keys added from now on."""
        self._keys |= keys
        text = self.setup.text(
            {
                "device_dir": self.devices.directory,
                "kubelet_dir": self.plugins,
                "cdi_dir": self.cdi,
                "listen": f"127.0.0.1:{self.port}",
                "verify": self.devices.kind,
                "missing_device_ttl": MISSING_DEVICE_TTL,
                "pod_resources_socket": self._pod_resources.path,
            }
            | self._keys
        )
        with open(self._configuration, "w", encoding="utf-8") as file:
            file.write(text)

    def named_in_spec(self) -> set[str]:
        """Return the names of the devices in the CDI spec, which the plugin may remove at any time."""
        named: set[str] = set()
        for file in Path(self.cdi).glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                named |= {device["name"] for device in json.loads(file.read_bytes())["devices"]}
        return named

    def reload(self) -> None:
        """Send SIGHUP, unless it would end the plugin, which has just started."""
        if self.plugin.ended is None and self.plugin.handles(signal.SIGHUP):
            self.model.may_have_forgotten()
            self.plugin.reloaded = time.monotonic()
            self.plugin.signal(signal.SIGHUP)

    async def restart_plugin(self, number: signal.Signals) -> None:
        """End the plugin with a signal and start it again, as its supervisor does."""
        await self.plugin.end(number)
        self.model.restarted()
        await self.plugin.start()

    async def start_kubelet(self) -> None:
        """Start the kubelet if it is not running."""
        if not self.kubelet_runs:
            await self.kubelet.start()
            self.kubelet_runs = True

    async def stop_kubelet(self) -> None:
        """End the kubelet without removing its socket."""
        self.kubelet_runs = False
        await self.kubelet.stop()

    async def restart_kubelet(self, *, keep_sockets: bool = False) -> None:
        """Restart the kubelet; with ``keep_sockets`` it does not remove the sockets of plugins."""
        await self.stop_kubelet()
        self.kubelet.faults.keep_sockets = keep_sockets
        await self.start_kubelet()
        self.kubelet.faults.keep_sockets = False

    async def replace_kubelet(self, version: KubeletVersion) -> None:
        """Replace the kubelet by one of another version, without pods."""
        await self.stop_kubelet()
        self.pods.forget()
        self.kubelet = self._kubelet(version)
        await self._pod_resources.__aexit__(None, None, None)
        self._pod_resources = PodResources(self.kubelet, self._pod_resources.path)
        await self._pod_resources.__aenter__()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.kubelet.checkpoint_path)
        await self.start_kubelet()

    def sockets(self) -> list[str]:
        """Return the plugin's sockets, of all resources."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(sockets(self.plugins))
        return []

    def _kubelet(self, version: KubeletVersion) -> Kubelet:
        return Kubelet(self.plugins, version=version, seed=self.seed)


@contextlib.asynccontextmanager
async def create_world(setup: Setup, version: KubeletVersion, seed: int) -> AsyncIterator[World]:
    """Create a world for the context, and remove it afterwards."""
    root = tempfile.mkdtemp(prefix="chaos-", dir="/tmp")
    try:
        os.mkdir(os.path.join(root, "kubelet"))
        state = World(root, setup, version, seed)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(state.monitor.running())
            stack.push_async_callback(state.close)
            await state.start()
            yield state
    finally:
        await asyncio.to_thread(shutil.rmtree, root)
