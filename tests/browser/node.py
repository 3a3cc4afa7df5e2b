"""A node for the page: ``aosp-plugin serve`` with stand-in devices, and the stand-in kubelet with pods.

The kubelet runs in an event loop in another thread, because a test that drives a browser blocks its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubelet_standin import Container, Kubelet, Pod, PodResources
from tests.support import RESOURCE, DeviceDirectory, free_port

if TYPE_CHECKING:
    import signal
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

PATIENCE = 60.0
"""Seconds after which a test gives up waiting, on a busy machine."""


class Node(DeviceDirectory):
    """The node. Its devices are files that tests create and remove."""

    def __init__(
        self,
        directory: str,
        loop: asyncio.AbstractEventLoop,
        *,
        pod_resources: bool,
        namespaces: Mapping[str, str] = {},
    ) -> None:
        """``pod_resources``: whether the kubelet serves the podresources API.

        ``namespaces`` are those of pods by name; others are in the namespace default.
        """
        super().__init__(Path(directory, "dev"))
        self._loop = loop
        # Writing checkpoints would slow down the measurements.
        self.kubelet = Kubelet(os.path.join(directory, "k"))
        self._pod_resources = (
            PodResources(self.kubelet, os.path.join(directory, "pods.sock"), namespaces) if pod_resources else None
        )
        self._process: asyncio.subprocess.Process | None = None
        self.port = free_port()
        self._environment = os.environ | {
            "AOSP_PLUGIN_POD_RESOURCES_SOCKET": os.path.join(directory, "pods.sock"),
            "AOSP_PLUGIN_MISSING_DEVICE_TTL": "3600",  # the tests of a busy machine take longer than the default
            "NODE_NAME": "phone-node-07",
        }

    @property
    def url(self) -> str:
        """URL of the page."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        """Process ID of the plugin."""
        assert self._process is not None
        return self._process.pid

    def report(self) -> dict[str, Any]:
        """Return the status report of the first resource."""
        with urllib.request.urlopen(f"{self.url}status", timeout=PATIENCE) as answer:  # noqa: S310 - a local address
            report: dict[str, Any] = json.load(answer)["resources"][0]
        return report

    def path(self, number: int) -> str:
        """Return the path of a device."""
        return str(self.directory / f"aosp_binder{number}")

    def listed(self, count: int) -> None:
        """Wait until the kubelet has this many allocatable devices."""

        def is_listed(kubelet: Kubelet) -> bool:
            view = kubelet.resource(RESOURCE)
            return view.connected and view.messages > 0 and view.allocatable == count

        self.run(self.kubelet.wait_for(is_listed, PATIENCE))

    def admit(self, name: str, count: int) -> Sequence[str]:
        """Start a pod; return its devices."""
        admitted = self.run(self.kubelet.admit(Pod(name, [Container("android", {RESOURCE: count})])))
        ids: Sequence[str] = admitted.containers["android"].device_ids[RESOURCE]
        return ids

    @contextlib.contextmanager
    def second_plugin(self) -> Iterator[None]:
        """Run another plugin of the resource."""
        flags = ["--device-dir", str(self.directory), "--kubelet-dir", self.kubelet.directory, "--verify", "file"]
        command = [sys.executable, "-m", "aosp_plugin", "serve", *flags, "--listen", ""]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603 - our own
            yield
            process.terminate()

    def signal(self, number: signal.Signals) -> None:
        """Send the plugin a signal."""
        os.kill(self.pid, number)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the kubelet's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * PATIENCE)

    async def start(self) -> None:
        """Start kubelet and plugin."""
        await self.kubelet.start()
        if self._pod_resources:
            await self._pod_resources.__aenter__()
        await self.start_plugin()

    async def start_plugin(self) -> None:
        """Start the plugin, for the first time or again."""
        flags = ["--device-dir", str(self.directory), "--kubelet-dir", self.kubelet.directory, "--verify", "file"]
        self._process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "aosp_plugin", "serve", *flags, "--listen", f"127.0.0.1:{self.port}"],
            env=self._environment,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def stop_plugin(self) -> None:
        """Stop the plugin."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()

    async def stop(self) -> None:
        """Stop kubelet and plugin."""
        await self.stop_plugin()
        if self._pod_resources:
            await self._pod_resources.__aexit__(None, None, None)
        await self.kubelet.stop()


@contextlib.contextmanager
def running(count: int, *, pod_resources: bool = True, namespaces: Mapping[str, str] = {}) -> Iterator[Node]:
    """Run a node with ``count`` devices. The other arguments are those of ``Node``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        node = Node(
            directory,
            loop,
            pod_resources=pod_resources,
            namespaces=namespaces,
        )
        node.add(*range(count))
        try:
            node.run(node.start())
            node.listed(count)
            yield node
        finally:
            node.run(node.stop())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
