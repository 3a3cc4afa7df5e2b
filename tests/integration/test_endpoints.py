"""The HTTP endpoints of running plugins: status, metrics, probes and page."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.daemon.assembly import create_backends
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.service.http import Answer
from aosp_plugin.framework.timings import DEFAULT
from aosp_plugin.report import endpoints
from aosp_plugin.report.leak_detector import LeakDetector
from aosp_plugin.report.observation import Observation
from kubelet_standin import Container, Kubelet, Pod
from kubelet_standin.podresources_server import PodResources as PodResourcesServer
from tests.support import PATIENCE, RESOURCE, DeviceDirectory, listed, problem, until

PHONE = Pod("phone-1", [Container("android", {RESOURCE: 2})])
ALLOCATED = f'aosp_plugin_devices_allocated{{resource="{RESOURCE}"}} 2.0'


class Daemon:
    """Plugins in this process with their HTTP routes, as ``serve`` creates them."""

    def __init__(self, config: Config) -> None:
        self.files = FileEvents()
        backends = create_backends(config)
        patient = DEFAULT._replace(answer=PATIENCE, list_patience=PATIENCE)  # even on a busy machine
        pod_resources = PodResources(config.pod_resources_socket, backends, timings=patient)
        self.leak_detector = LeakDetector(backends, config.kubelet_dir, config.leak_scan_interval)
        detector = self.leak_detector if config.leak_scan_interval else None
        observation = Observation(backends, pod_resources, detector, polling=lambda: self.files.polling)
        self.plugins = [
            DevicePlugin(backend, kubelet_dir=config.kubelet_dir, files=self.files, observer=observation.observer(name))
            for name, backend in backends.items()
        ]
        served = endpoints.routes_by_address(config, self.plugins, self.files, observation)
        self.routes = {path: route for group in served.values() for path, route in group.items()}

    async def get(self, path: str) -> Answer:
        """Return the answer of a route, called in another thread as the HTTP server does."""
        return await asyncio.to_thread(self.routes[path])

    async def text(self, path: str) -> str:
        """Return the body of an answer that is not compressed."""
        return (await self.get(path)).body.decode()

    async def report(self) -> dict[str, Any]:
        """Return the status report."""
        report: dict[str, Any] = json.loads((await self.get("/status")).body)
        return report

    async def healthy(self, count: int) -> None:
        """Wait until so many devices of the first resource are healthy."""
        await until(lambda: self.plugins[0].inventory.snapshot.healthy == count)


@contextlib.asynccontextmanager
async def running(
    devices: DeviceDirectory, kubelet_dir: str, *resources: Resource, **config: Any
) -> AsyncIterator[Daemon]:
    """Run plugins in this process, from after their first scan."""
    default = Resource(device_dir=str(devices.directory), verify=Verify.FILE)
    settings = {"pod_resources_socket": ""} | config
    daemon = Daemon(Config(kubelet_dir=kubelet_dir, resources=resources or (default,), **settings))
    tasks = [asyncio.create_task(plugin.run()) for plugin in daemon.plugins]
    try:
        await until(lambda: all(plugin.inventory.snapshot.revision for plugin in daemon.plugins))
        yield daemon
    finally:
        for plugin in daemon.plugins:
            plugin.stop()
        await asyncio.gather(*tasks)
        daemon.files.close()


# -- status


async def test_status_has_problems_and_changes(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    device_directory.add(0, 1)
    async with running(device_directory, kubelet_dir) as daemon:
        await problem(daemon.plugins[0], "waiting")
        report = await daemon.report()
        assert [problem["kind"] for problem in report["problems"]] == ["not-registered"]
        assert report["changes"] == []
        device_directory.remove(1)
        await daemon.healthy(1)
        report = await daemon.report()
        assert [problem["kind"] for problem in report["problems"]] == ["not-registered", "missing"]
        assert [(change["event"], change["devices"]) for change in report["changes"]] == [
            ("unhealthy", ["aosp_binder1"])
        ]
        assert report["changes"][0]["time"] >= report["problems"][1]["since"] - 1


# -- allocations and metrics


async def test_status_and_metrics_show_the_allocations_of_the_kubelet(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    device_directory.add(0, 1, 2)
    path = f"{kubelet_dir}/pods.sock"
    async with (
        Kubelet(kubelet_dir) as kubelet,
        PodResourcesServer(kubelet, path) as server,
        running(device_directory, kubelet_dir, pod_resources_socket=path) as daemon,
    ):
        await listed(kubelet, 3)
        await kubelet.admit(PHONE)
        assert server.requests == 0
        assert ALLOCATED in await daemon.text("/metrics")
        assert server.requests == 1
        report = await daemon.report()
        assert report["allocations"] == {"known": True, "problem": ""}
        assert report["resources"][0]["counts"]["allocated"] == 2
