"""Behaviour that every backend gets from the framework, here with ListedDevices."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import grpc
import pytest

from aosp_plugin.framework import Device, DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import Kubelet
from tests.support import IN_LIFE, run, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub

RESOURCE = "example.com/thing"

NO_PERIODIC_SCANS = IN_LIFE._replace(safety=3600.0)


class Things(ListedDevices):
    """Three devices, one of them unhealthy, whose scan fails on request."""

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self.things = ["/dev/thing0", "/dev/thing1", "/dev/thing2"]
        super().__init__(RESOURCE, lambda: self.things, directories=[], missing_device_ttl=0)

    def devices(self) -> list[Device]:
        """Return the devices, one of them unhealthy."""
        return [device._replace(reason="worn") if device.id == "thing2" else device for device in super().devices()]

    def scan(self) -> None:
        """Scan, or fail on request."""
        if self.failure is not None:
            raise self.failure
        super().scan()


@contextlib.asynccontextmanager
async def served(
    kubelet_dir: str, things: Things
) -> AsyncIterator[tuple[DevicePluginAsyncStub, Kubelet, DevicePlugin]]:
    """Run a plugin with a kubelet inside the context; yield a stub, the kubelet and the plugin."""
    plugin = DevicePlugin(things, kubelet_dir=kubelet_dir, timings=NO_PERIODIC_SCANS)
    async with Kubelet(kubelet_dir) as kubelet:
        task = asyncio.create_task(plugin.run())
        try:
            await kubelet.wait_for(lambda k: k.resource(RESOURCE).messages > 0)
            path = os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint)
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                yield DevicePluginStub(channel), kubelet, plugin
        finally:
            plugin.stop()
            await task


async def test_id_that_is_sent_twice_is_allocated_once(kubelet_dir: str) -> None:
    async with served(kubelet_dir, Things()) as (stub, _, _):
        container = pb.ContainerAllocateRequest(devices_ids=["thing1", "thing0", "thing1"])
        response = await stub.Allocate(pb.AllocateRequest(container_requests=[container]))
    paths = [device.container_path for device in response.container_responses[0].devices]
    assert paths == ["/dev/thing1", "/dev/thing0"]


async def test_unhealthy_device_is_refused_without_asking_the_backend(kubelet_dir: str) -> None:
    async with served(kubelet_dir, Things()) as (stub, kubelet, _):
        assert kubelet.resource(RESOURCE).allocatable == 2
        container = pb.ContainerAllocateRequest(devices_ids=["thing2"])
        with pytest.raises(grpc.aio.AioRpcError, match="'thing2' is unhealthy: worn") as refused:
            await stub.Allocate(pb.AllocateRequest(container_requests=[container]))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_failed_scan_is_retried_without_an_event(kubelet_dir: str) -> None:
    """No event reports that a full disk has space again."""
    things = Things()
    async with served(kubelet_dir, things) as (_, kubelet, plugin):
        things.failure = OSError(28, "No space left on device")
        plugin.rescan()
        await until(lambda: plugin.unready != "")
        things.failure, things.things = None, ["/dev/thing0"]
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).capacity == 1)
        await until(lambda: plugin.unready == "")


@pytest.mark.usefixtures("no_mount_events")
async def test_missing_device_is_removed_at_its_time_without_an_event(kubelet_dir: str) -> None:
    paths = ["/dev/thing0", "/dev/thing1"]
    backend = ListedDevices(RESOURCE, lambda: paths, directories=[], missing_device_ttl=0.5)
    plugin = DevicePlugin(backend, kubelet_dir=kubelet_dir, timings=NO_PERIODIC_SCANS)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 2)
        del paths[1]
        plugin.rescan()
        await kubelet.wait_for(lambda k: (k.resource(RESOURCE).allocatable, k.resource(RESOURCE).capacity) == (1, 2))
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).capacity == 1)
