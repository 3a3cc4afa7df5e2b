"""A node for the page: ``aosp-plugin serve`` with stand-in devices, and the stand-in kubelet with pods.

The kubelet runs in an event loop in another thread, because a test that drives a browser blocks its own.
"""

import asyncio
import contextlib
import json
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from kubelet_standin import Container, Kubelet, Pod, PodResources
from tests.support import RESOURCE, DeviceDirectory, Serve, free_port

PATIENCE = 60.0
"""Seconds after which a test gives up waiting, on a busy machine."""


class Node(DeviceDirectory):
    """The node. Its devices are files that tests create and remove."""

    def __init__(self, directory: str, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """``run`` runs a coroutine in the kubelet's event loop."""
        super().__init__(Path(directory, "dev"))
        self.run = run
        self.kubelet = Kubelet(os.path.join(directory, "k"))
        self.pods_socket = os.path.join(directory, "pods.sock")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        self.plugin = self.serve("--listen", f"127.0.0.1:{port}")

    def serve(self, *flags: str) -> Serve:
        """Return a plugin with these flags; it is not started."""
        environment = {
            "AOSP_PLUGIN_POD_RESOURCES_SOCKET": self.pods_socket,
            "AOSP_PLUGIN_MISSING_DEVICE_TTL": "3600",  # the tests of a busy machine take longer than the default
            "NODE_NAME": "phone-node-07",
        }
        quiet = asyncio.subprocess.DEVNULL
        return Serve(self, self.kubelet.directory, *flags, environment=environment, stderr=quiet)

    def report(self) -> dict[str, Any]:
        """Return the status report of the first resource."""
        with urllib.request.urlopen(f"{self.url}status", timeout=PATIENCE) as answer:  # noqa: S310 - a local address
            report: dict[str, Any] = json.load(answer)["resources"][0]
        return report

    def reports(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the report of the first resource fulfils a condition."""
        end = time.monotonic() + PATIENCE
        while not condition(report := self.report()):
            assert time.monotonic() < end, report["counts"]

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
def running(count: int, *, pod_resources: bool = True) -> Iterator[Node]:
    """Run a node with ``count`` devices. ``pod_resources``: whether the kubelet serves the podresources API."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(2 * PATIENCE)

    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        node, stack = Node(directory, run), contextlib.AsyncExitStack()
        node.add(*range(count))
        try:
            run(stack.enter_async_context(node.kubelet))
            if pod_resources:
                run(stack.enter_async_context(PodResources(node.kubelet, node.pods_socket, {})))
            run(stack.enter_async_context(node.plugin))
            node.listed(count)
            yield node
        finally:
            run(stack.aclose())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
