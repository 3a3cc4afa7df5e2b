"""What the protocol's room does by itself, for a backend that does nothing: here, one that lists paths."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from aosp_plugin.framework import Device, DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.testing import Kubelet
from tests.support import IN_LIFE, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub

RESOURCE = "example.com/thing"


class Things(ListedDevices):
    """Three things, of which one is ill, and which a look can fail to find."""

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self.failed = threading.Semaphore(0)
        self.things = ["/dev/thing0", "/dev/thing1", "/dev/thing2"]
        super().__init__(RESOURCE, lambda: self.things, directories=[], missing_device_ttl=0)

    def devices(self) -> list[Device]:
        """Return them with their health."""
        return [device._replace(reason="worn") if device.id == "thing2" else device for device in super().devices()]

    def scan(self, changed: Collection[str] | None = None) -> None:
        """Look, unless that is to fail."""
        if self.failure is not None:
            self.failed.release()
            raise self.failure
        super().scan(changed)


@contextlib.asynccontextmanager
async def served(
    kubelet_dir: str, things: Things
) -> AsyncIterator[tuple[DevicePluginAsyncStub, Kubelet, DevicePlugin]]:
    """Run a plugin for things, and yield what calls it."""
    plugin = DevicePlugin(things, kubelet_dir=kubelet_dir, timings=IN_LIFE)
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


async def test_an_id_that_is_sent_twice_is_allocated_once(kubelet_dir: str) -> None:
    """A backend is given each ID of a container once, however often the kubelet sends it."""
    async with served(kubelet_dir, Things()) as (stub, _, _):
        container = pb.ContainerAllocateRequest(devices_ids=["thing1", "thing0", "thing1"])
        response = await stub.Allocate(pb.AllocateRequest(container_requests=[container]))
    paths = [device.container_path for device in response.container_responses[0].devices]
    assert paths == ["/dev/thing1", "/dev/thing0"]


async def test_an_unhealthy_device_is_refused_for_any_backend(kubelet_dir: str) -> None:
    """A device that the snapshot has as unhealthy never reaches the backend."""
    async with served(kubelet_dir, Things()) as (stub, kubelet, _):
        assert kubelet.resource(RESOURCE).allocatable == 2
        container = pb.ContainerAllocateRequest(devices_ids=["thing2"])
        with pytest.raises(grpc.aio.AioRpcError, match="'thing2' is unhealthy: worn") as refused:
            await stub.Allocate(pb.AllocateRequest(container_requests=[container]))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_without_the_option_no_preference_is_asked(kubelet_dir: str) -> None:
    """A backend that neither prefers nor prepares says so in its options."""
    async with served(kubelet_dir, Things()) as (stub, _, _):
        assert await stub.GetDevicePluginOptions(pb.Empty()) == pb.DevicePluginOptions()


async def test_a_look_that_fails_leaves_the_devices_as_they_were(
    kubelet_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing look is logged once, makes the process unhealthy, and ends with the next one that succeeds."""
    things = Things()
    caplog.set_level("INFO")
    async with served(kubelet_dir, things) as (_, kubelet, plugin):
        things.failure = OSError(5, "Input/output error")
        for _ in range(3):
            plugin.rescan()
            await asyncio.to_thread(things.failed.acquire)
        await until(lambda: plugin.unhealthy == "device scan failed: [Errno 5] Input/output error")
        assert kubelet.resource(RESOURCE).capacity == 3
        things.failure, things.things = None, ["/dev/thing0"]
        plugin.rescan()
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).capacity == 1)
        await until(lambda: plugin.unhealthy == "")
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


async def test_a_look_that_fails_is_tried_again_without_an_event(
    kubelet_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells that a full disk has space again; what changed in the meantime is found at once all the same."""
    monkeypatch.setattr("aosp_plugin.framework.events.file_events.SAFETY_INTERVAL", 3600.0)
    things = Things()
    async with served(kubelet_dir, things) as (_, kubelet, plugin):
        things.failure = OSError(28, "No space left on device")
        plugin.rescan()
        await until(lambda: plugin.unhealthy != "")
        things.failure, things.things = None, ["/dev/thing0"]
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).capacity == 1)
        await until(lambda: plugin.unhealthy == "")
