"""A DRA driver publishes nothing while a device plugin serves the same resource on the node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from aosp_plugin.daemon.allocations import yield_to_device_plugins
from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.backend import Version
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


class Counted(DirectoryBackend):
    """Counts how often the attributes of a device are read: once for each computation of the slices."""

    computed = 0

    def attributes(self, device_id: str) -> Mapping[str, bool | int | str | Version]:
        """Count, and return none."""
        self.computed += device_id == self.ids[0]
        return {}


class Polled:
    """Passes on what a driver is to withhold, and lets a test wait for it."""

    def __init__(self, driver: DraDriver) -> None:
        self.resource_name = driver.resource_name
        self.answers = asyncio.Semaphore(0)
        self._driver = driver

    def withhold(self, reason: str) -> None:
        """Pass the reason on."""
        self._driver.withhold(reason)
        self.answers.release()


async def test_an_answer_of_the_kubelet_that_changes_nothing_computes_no_slices(short_directory: Path) -> None:
    async with ApiServer() as server, Kubelet(short_directory / "k") as kubelet:
        node, backend = DraNode(short_directory, server), Counted(short_directory / "phones", count=3)
        socket = str(short_directory / "pods.sock")
        async with node.kubelet, PodResourcesServer(kubelet, socket), node.running(backend) as driver:
            await server.wait_for(lambda s: s.open_watches)
            for _ in range(2):  # the second comparison begins after the end of the first one
                lists = server.count("list", "resourceslices")
                driver.rescan()
                await server.wait_for(lambda s, count=lists: s.count("list", "resourceslices") > count)  # type: ignore[misc]
            computed, polled = backend.computed, Polled(driver)
            pod_resources = PodResources(socket, [PHONE])
            yielding = asyncio.create_task(
                yield_to_device_plugins([cast("DraDriver", polled)], pod_resources, interval=0.0)
            )
            for _ in range(5):
                await polled.answers.acquire()
            yielding.cancel()
            pod_resources.close()
            assert backend.computed == computed


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
