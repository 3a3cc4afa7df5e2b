"""Requests that wait, over a real socket: they delay none that can be answered."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest

from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import Kubelet
from tests.support import IN_LIFE, PATIENCE, listed, run

RESOURCE = "example.com/thing"
MANY = 90


class SlowThings(ListedDevices):
    """One device, whose preparation waits."""

    pre_start_required = True

    def __init__(self) -> None:
        super().__init__(RESOURCE, lambda: ["/dev/thing0"], directories=[], missing_device_ttl=0)
        self.preparing = threading.Event()
        self.prepared = threading.Event()

    def pre_start(self, ids: Sequence[str]) -> None:  # noqa: ARG002
        """Wait."""
        self.preparing.set()
        self.prepared.wait(PATIENCE)


@pytest.fixture
def things() -> SlowThings:
    """Return the backend of the plugin."""
    return SlowThings()


@pytest.fixture
async def channel(kubelet_dir: str, things: SlowThings) -> AsyncIterator[grpc.aio.Channel]:
    """Run a plugin, and connect to it."""
    plugin = DevicePlugin(things, kubelet_dir=kubelet_dir, timings=IN_LIFE._replace(pre_start=PATIENCE))
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await listed(kubelet, 1, RESOURCE)
        path = os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint)
        async with grpc.aio.insecure_channel(f"unix:{path}") as connection:
            yield connection


async def allocate(channel: grpc.aio.Channel) -> int:
    """Allocate the device; return the number of containers in the response."""
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["thing0"])])
    return len((await DevicePluginStub(channel).Allocate(request, timeout=PATIENCE)).container_responses)


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation", "PreStartContainer", "ListAndWatch"])
async def test_requests_without_a_message_delay_no_other(channel: grpc.aio.Channel, method: str) -> None:
    """A client that opens calls and sends nothing needs no right but that on the socket."""
    call_without_message = channel.stream_unary(f"/v1beta1.DevicePlugin/{method}", None, None)
    silent = [call_without_message(None) for _ in range(MANY)]
    for call in silent:
        await call.wait_for_connection()
    assert await allocate(channel) == 1
    for call in silent:
        call.cancel()


async def test_streams_delay_no_request(channel: grpc.aio.Channel) -> None:
    async with contextlib.AsyncExitStack() as streams:
        for _ in range(MANY):
            stream = DevicePluginStub(channel).ListAndWatch(pb.Empty())
            streams.callback(stream.cancel)
            await asyncio.wait_for(stream.read(), PATIENCE)
        assert await allocate(channel) == 1


async def test_preparations_that_take_long_delay_no_other_request(
    channel: grpc.aio.Channel, things: SlowThings
) -> None:
    """One of them is made, and the others wait for its end."""
    request = pb.PreStartContainerRequest(devices_ids=["thing0"])
    preparing = [DevicePluginStub(channel).PreStartContainer(request, timeout=PATIENCE) for _ in range(4)]
    await asyncio.wait_for(asyncio.to_thread(things.preparing.wait), PATIENCE)
    assert await allocate(channel) == 1
    things.prepared.set()
    await asyncio.gather(*preparing)
