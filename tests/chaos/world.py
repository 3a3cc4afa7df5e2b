"""The state that faults change: directories, devices, a kubelet, and the plugin's process and configuration."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import struct
import tempfile
from typing import TYPE_CHECKING, Any

from kubelet_standin import Behaviour, Kubelet
from kubelet_standin.podresources_server import PodResources
from tests import hanging_fs
from tests.chaos import place
from tests.chaos.expected import MISSING_DEVICE_TTL, Model
from tests.chaos.files import DeviceDirectory
from tests.chaos.monitor import Monitor
from tests.chaos.plugin import Plugin
from tests.chaos.pods import Pods
from tests.chaos.remote import Remote
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.chaos.setups import Setup

FIRST_DEVICES = range(24)
FIRST_LINKS = range(100, 108)
FIRST_REMOTE = range(120, 126)

SPACE = "size=8m,nr_inodes=400"
"""The options of the file systems that faults fill."""


class World:
    """The state of one seed, with the operations that faults use."""

    def __init__(self, root: str, setup: Setup, behaviour: Behaviour, seed: int) -> None:
        self.root = root
        self.setup = setup
        self.seed = seed
        self.plugins = os.path.join(root, "kubelet", "plugins")
        """The kubelet's directory, below the mount point so that faults can move it."""
        self.cdi_mount = os.path.join(root, "run")
        self.cdi = os.path.join(self.cdi_mount, "cdi")
        self.port = free_port()
        self._left_sockets: set[str] = set()
        """The process IDs of second plugins, which are part of the names of their sockets."""
        self.devices = DeviceDirectory(
            os.path.join(root, "dev"), os.path.join(root, "targets"), [served.prefix for served in setup.served]
        )
        self.model = Model(setup.served, self.devices)
        self.pods = Pods(self)
        self.kubelet = self._kubelet(behaviour)
        self.kubelet_runs = False
        self.monitor = Monitor(self)
        self._pod_resources = PodResources(self.kubelet, os.path.join(root, "podresources.sock"))
        self._configuration = os.path.join(root, "config.yaml")
        self._clock = os.path.join(root, "clock")
        self.step_clock(0.0)
        environment = {
            "AOSP_CHAOS_CLOCK": self._clock,
            "PYTHONPATH": os.path.join(os.path.dirname(__file__), "stepped"),
        }
        self.plugin = Plugin(
            self._configuration, os.path.join(root, "log"), {**environment, **self.monitor.environment}
        )
        self.second = Plugin(os.path.join(root, "second.yaml"), os.path.join(root, "second.log"), environment)
        """A second plugin of the same resources, which runs only during some faults."""
        self._keys: dict[str, Any] = {}

    async def start(self) -> None:
        """Create the first devices, and start kubelet and plugin."""
        os.makedirs(self.plugins)
        for prefix in self.devices.prefixes:
            for number in FIRST_DEVICES:
                self.devices.make(f"{prefix}{number}")
            for number in FIRST_LINKS:
                self.devices.link(f"{prefix}{number}")
            for number in FIRST_REMOTE if self.devices.remote else ():
                self.link_remote(f"{prefix}{number}")
        self.configure()
        await self._pod_resources.__aenter__()
        await self.start_kubelet()
        await self.plugin.start()

    async def close(self) -> None:
        """Stop plugin and kubelet."""
        await self.plugin.close()
        await self.second.close()
        await self._pod_resources.__aexit__(None, None, None)
        await self.stop_kubelet()

    @property
    def remote(self) -> Remote:
        """The file systems that hang on request."""
        assert self.devices.remote is not None
        return self.devices.remote

    def link_remote(self, name: str) -> None:
        """Create a device that is a link to one on the FUSE file system."""
        self.devices.link(name, to=self.remote.target(name))

    def configure(self, **keys: Any) -> None:
        """Write the configuration file, with these keys added from now on."""
        self._keys |= keys
        self.write_configuration(self.configuration())

    def configuration(self, **keys: Any) -> str:
        """Return the current configuration as text, with these keys added."""
        return self.setup.text(
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
            | keys
        )

    def write_configuration(self, text: str) -> None:
        """Write any text to the configuration file."""
        with open(self._configuration, "w", encoding="utf-8") as file:
            file.write(text)

    def named_in_spec(self) -> set[str]:
        """Return the names of the devices in the CDI spec."""
        named: set[str] = set()
        for file in os.listdir(self.cdi) if os.path.isdir(self.cdi) else []:
            with open(os.path.join(self.cdi, file), encoding="utf-8") as text:
                named |= {device["name"] for device in json.load(text)["devices"]}
        return named

    def step_clock(self, seconds: float) -> None:
        """Set the offset of the plugin's clock, in seconds."""
        with open(self._clock, "r+b" if os.path.exists(self._clock) else "wb") as file:
            file.write(struct.pack("d", seconds))

    def reload(self) -> bool:
        """Send SIGHUP, unless the plugin has not installed its handler yet. Return whether it was sent."""
        if self.plugin.ended is not None or not self.plugin.catches(signal.SIGHUP):
            return False
        self.model.may_have_forgotten()
        self.plugin.signal(signal.SIGHUP)
        return True

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

    async def replace_kubelet(self, behaviour: Behaviour) -> None:
        """Replace the kubelet by one of another version, without pods."""
        await self.stop_kubelet()
        self.pods.forget()
        self.kubelet = self._kubelet(behaviour)
        await self._pod_resources.__aexit__(None, None, None)
        self._pod_resources = PodResources(self.kubelet, self._pod_resources.path)
        await self._pod_resources.__aenter__()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.kubelet.checkpoint_path)
        await self.start_kubelet()

    def sockets(self) -> list[str]:
        """Return the plugin's sockets, of all resources, without those that the second plugin left."""
        with contextlib.suppress(FileNotFoundError):
            names = sorted(name for name in os.listdir(self.plugins) if name.startswith("aosp-"))
            return [name for name in names if name.split("-")[-2] not in self._left_sockets]
        return []

    async def start_second_plugin(self) -> None:
        """Start a second plugin of the same resources, and wait until it has registered if the kubelet runs."""
        before = len(self.kubelet.registrations)
        with open(os.path.join(self.root, "second.yaml"), "w", encoding="utf-8") as file:
            file.write(self.configuration(listen=f"127.0.0.1:{free_port()}"))
        await self.second.start()
        self._left_sockets.add(str(self.second.pid))
        if self.kubelet_runs:
            count = before + len(self.setup.served)
            with contextlib.suppress(TimeoutError):  # the kubelet may be unable to
                await self.kubelet.wait_for(lambda kubelet: len(kubelet.registrations) >= count, 10)

    def _kubelet(self, behaviour: Behaviour) -> Kubelet:
        return Kubelet(self.plugins, behaviour=behaviour, seed=self.seed)


@contextlib.asynccontextmanager
async def create_world(setup: Setup, behaviour: Behaviour, seed: int, *, namespace: bool) -> AsyncIterator[World]:
    """Create a world for the context, and remove it afterwards."""
    root = tempfile.mkdtemp(prefix="chaos-", dir="/tmp")
    try:
        if namespace:
            place.mount(root)
        for name in ("kubelet", "run"):
            os.makedirs(os.path.join(root, name))
            if namespace:
                place.mount(os.path.join(root, name), SPACE)
        state = World(root, setup, behaviour, seed)
        async with contextlib.AsyncExitStack() as stack:
            if namespace and hanging_fs.available():
                state.devices.remote = Remote(root, state.devices.device)
                stack.enter_context(state.devices.remote.mounted())
            await stack.enter_async_context(state.monitor.running())
            stack.push_async_callback(state.close)
            await state.start()
            yield state
    finally:
        if namespace:
            place.unmount(root)
        await asyncio.to_thread(shutil.rmtree, root)
