"""A DRA driver publishes nothing while a device plugin serves the same resource on the node."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.daemon.both_apis import yield_to_device_plugins
from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.testing import Kubelet
from aosp_plugin.testing.apiserver import ApiServer
from aosp_plugin.testing.podresources_server import PodResources as PodResourcesServer
from tests.claims import DirectoryBackend
from tests.dra_node import DraNode
from tests.support import listed, run

if TYPE_CHECKING:
    from collections.abc import Iterator

PHONE = "aosp.io/phone"


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="both-") as directory:
        yield Path(directory)


async def test_a_driver_yields_to_a_device_plugin_until_that_has_ended(directory: Path) -> None:
    (directory / "dev").mkdir()
    (directory / "dev" / "a").touch()
    devices = ListedDevices(PHONE, lambda: [str(directory / "dev" / "a")], directories=[str(directory / "dev")])
    async with ApiServer() as server, Kubelet(directory / "k") as kubelet:
        node = DraNode(directory, server)
        socket = str(directory / "pods.sock")
        async with (
            node.kubelet,
            PodResourcesServer(kubelet, socket),
            node.running(DirectoryBackend(directory / "phones", count=3)) as driver,
        ):
            pod_resources = PodResources(socket, [PHONE])
            yielding = asyncio.create_task(yield_to_device_plugins([driver], pod_resources, interval=0.01))
            async with run(DevicePlugin(devices, kubelet_dir=kubelet.directory)):
                await listed(kubelet, 1, PHONE)
                await server.wait_for(lambda _: node.slices and not node.devices)
                assert "a device plugin offers 1 devices of aosp.io/phone on this node" in driver.unready
            await server.wait_for(lambda _: len(node.devices) == 3)
            yielding.cancel()
            pod_resources.close()


async def test_devices_stay_published_while_the_kubelet_does_not_answer(directory: Path) -> None:
    class Driver:
        resource_name = PHONE

        def withhold(self, reason: str) -> None:
            raise AssertionError(reason)

    pod_resources = PodResources(str(directory / "missing.sock"), [PHONE])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await yield_to_device_plugins([Driver()], pod_resources, interval=0.0)
    pod_resources.close()
