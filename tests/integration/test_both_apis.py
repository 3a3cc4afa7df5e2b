"""A DRA driver publishes nothing while a device plugin serves the same resource on the node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from aosp_plugin.daemon.allocations import yield_to_device_plugins
from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.dra.driver import DraDriver
from aosp_plugin.framework.podresources_client import PodResources
from kubelet_standin import Kubelet
from kubelet_standin.apiserver import ApiServer
from kubelet_standin.podresources_server import PodResources as PodResourcesServer
from tests.claims import DirectoryBackend
from tests.dra_node import DraNode
from tests.support import listed, run

PHONE = "aosp.io/phone"


async def test_a_driver_yields_to_a_device_plugin_until_that_has_ended(short_directory: Path) -> None:
    (short_directory / "dev").mkdir()
    (short_directory / "dev" / "a").touch()
    devices = ListedDevices(
        PHONE, lambda: [str(short_directory / "dev" / "a")], directories=[str(short_directory / "dev")]
    )
    async with ApiServer() as server, Kubelet(short_directory / "k") as kubelet:
        node = DraNode(short_directory, server)
        socket = str(short_directory / "pods.sock")
        async with (
            node.kubelet,
            PodResourcesServer(kubelet, socket),
            node.running(DirectoryBackend(short_directory / "phones", count=3)) as driver,
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


async def test_devices_stay_published_while_the_kubelet_does_not_answer(short_directory: Path) -> None:
    class Driver:
        resource_name = PHONE

        def withhold(self, reason: str) -> None:
            raise AssertionError(reason)

    pod_resources = PodResources(str(short_directory / "missing.sock"), [PHONE])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await yield_to_device_plugins([cast("DraDriver", Driver())], pod_resources, interval=0.0)
    pod_resources.close()
