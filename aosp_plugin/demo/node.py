"""The node of the demo: a stand-in host with phones of empty files, and ``aosp-plugin serve`` in its own process."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import click
import yaml

RESOURCE = "aosp.io/phone"
BINDER_DEVICES = ("binder", "hwbinder", "vndbinder")
"""The files of a phone, which is a directory."""

START_TIMEOUT = STOP_TIMEOUT = 20.0
"""Seconds in which the plugin has to register, and to end. Both take a small part of one second on an idle machine."""


class DemoError(click.ClickException):
    """A step of the demo failed."""


class Host:
    """Phones in a directory, as on a host where something else has made their binder devices."""

    def __init__(self, directory: str, phones: int) -> None:
        """Describe the phones; ``create`` makes their files."""
        self.phones = [f"phone{number}" for number in range(phones)]
        self.configuration = os.path.join(directory, "config.yaml")
        """The plugin's configuration file."""
        self.kubelet_dir = os.path.join(directory, "kubelet")
        self._device_dir = os.path.join(directory, "dev")

    def create(self) -> None:
        """Make all phones."""
        for phone in self.phones:
            os.makedirs(os.path.join(self._device_dir, phone))
            self.add(phone, BINDER_DEVICES)

    def add(self, phone: str, devices: Iterable[str]) -> None:
        """Make binder devices of a phone."""
        for device in devices:
            os.mknod(os.path.join(self._device_dir, phone, device))

    def remove(self, phone: str, devices: Iterable[str]) -> None:
        """Remove binder devices of a phone."""
        for device in devices:
            os.unlink(os.path.join(self._device_dir, phone, device))

    def configure(self, *, listen: str, pod_resources_socket: str) -> None:
        """Write the plugin's configuration."""
        document = {
            "version": "v1",
            "resource_name": RESOURCE,
            "device_dir": self._device_dir,
            "device_prefix": "phone",
            "verify": "file",
            "sets": {"names": list(BINDER_DEVICES)},
            "container_paths": [f"/dev/{name}" for name in BINDER_DEVICES],
            "shared_devices": [],
            "kubelet_dir": self.kubelet_dir,
            "pod_resources_socket": pod_resources_socket,
            "listen": listen,
        }
        with open(self.configuration, "w", encoding="utf-8") as file:
            yaml.safe_dump(document, file, sort_keys=False)


class PluginProcess:
    """A process of the plugin: an async context manager, which kills it at the end if it still runs."""

    def __init__(
        self, flags: Sequence[str], variables: Mapping[str, str] | None = None, log: Callable[[str], object] = print
    ) -> None:
        """Prepare ``serve`` with these flags and variables. ``log`` is called with each line that it logs."""
        self._command = [sys.executable, "-m", "aosp_plugin", "serve", *flags]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AOSP_PLUGIN_")}
        self._environment = inherited | dict(variables or {})
        self._log = log

    async def __aenter__(self) -> Self:
        """Start the process."""
        # A process group of its own: Ctrl-C in a terminal interrupts the demo, which then stops the plugin.
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            process_group=0,
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process if it still runs, and read its log to the end."""
        self.kill()
        await self.exited()

    async def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        async for line in self._process.stdout:
            self._log(line.decode(errors="replace").rstrip("\n"))

    async def exited(self) -> int:
        """Wait until the process has ended and its log is read, and return its exit code."""
        await asyncio.wait({self._reader})
        return await self._process.wait()

    async def stop(self) -> int:
        """End the process with SIGTERM and return its exit code. Raises TimeoutError."""
        self._process.terminate()
        return await asyncio.wait_for(self.exited(), STOP_TIMEOUT)

    def kill(self) -> None:
        """Send SIGKILL to the process, unless it has ended."""
        if self._process.returncode is None:
            self._process.kill()
