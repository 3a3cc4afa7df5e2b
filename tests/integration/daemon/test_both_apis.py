"""A DRA driver publishes nothing while a device plugin serves the same resource on the node."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import cast

import pytest

from aosp_plugin.daemon.allocations import yield_to_device_plugins
from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.dra.driver import DraDriver
from aosp_plugin.framework.podresources_client import Allocatable, PodResources
from kubelet_standin import Kubelet
from kubelet_standin import PodResources as PodResourcesServer
from kubelet_standin.apiserver import ApiServer
from tests.claims import DirectoryBackend
from tests.dra_node import DraNode
from tests.support import listed, run, unready, until

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
                assert "a device plugin offers 1 devices of aosp.io/phone on this node" in unready(driver)
            await server.wait_for(lambda _: len(node.devices) == 3)
            yielding.cancel()
            pod_resources.close()


async def test_devices_stay_published_while_the_kubelet_does_not_answer(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        resource_name = PHONE

        def withhold(self, reason: str) -> None:
            raise AssertionError(reason)

    answers: list[str] = []
    allocatable = PodResources.allocatable

    async def recorded(pod_resources: PodResources) -> Allocatable:
        answer = await allocatable(pod_resources)
        answers.append(answer.problem)
        return answer

    monkeypatch.setattr(PodResources, "allocatable", recorded)
    with contextlib.closing(PodResources(str(short_directory / "missing.sock"), [PHONE])) as pod_resources:
        async with background_task(yield_to_device_plugins([cast("DraDriver", Driver())], pod_resources, interval=0.0)):
            await until(lambda: len(answers) >= 2)
    assert all(answers)
