"""Requests that wait, over a real socket: they take no place from those that can be answered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.deviceplugin import request_threads, servicer
from aosp_plugin.framework.deviceplugin.request_threads import PLACES
from kubelet_standin import Kubelet
from tests.support import IN_LIFE, PATIENCE, listed, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

RESOURCE = "example.com/thing"
NEVER = 100 * PATIENCE
SILENT = 90


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
    plugin = DevicePlugin(things, kubelet_dir=kubelet_dir, timings=IN_LIFE)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await listed(kubelet, 1, RESOURCE)
        path = os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint)
        async with grpc.aio.insecure_channel(f"unix:{path}") as connection:
            yield connection


@pytest.fixture
def no_overdue_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests wait for a place without end."""
    monkeypatch.setattr(request_threads, "LONGEST_WAIT", NEVER)


async def allocate(channel: grpc.aio.Channel) -> int:
    """Allocate the device; return the number of containers in the response."""
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["thing0"])])
    return len((await DevicePluginStub(channel).Allocate(request, timeout=PATIENCE)).container_responses)


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation", "PreStartContainer", "ListAndWatch"])
async def test_requests_without_a_message_delay_others_once_and_not_in_turns(
    channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A client that opens calls and sends nothing needs no right but that on the socket."""
    monkeypatch.setattr(request_threads, "LONGEST_WAIT", 2 * PATIENCE * PLACES / SILENT)
    call_without_message = channel.stream_unary(f"/v1beta1.DevicePlugin/{method}", None, None)
    silent = [call_without_message(None) for _ in range(SILENT)]
    for call in silent:
        await call.wait_for_connection()
    assert await allocate(channel) == 1
    for call in silent:
        call.cancel()


@pytest.mark.usefixtures("no_overdue_requests")
async def test_streams_have_no_places(channel: grpc.aio.Channel) -> None:
    async with contextlib.AsyncExitStack() as streams:
        for _ in range(12 * PLACES):
            stream = DevicePluginStub(channel).ListAndWatch(pb.Empty())
            streams.callback(stream.cancel)
            await asyncio.wait_for(stream.read(), PATIENCE)
        assert await allocate(channel) == 1


@pytest.mark.usefixtures("no_overdue_requests")
async def test_preparations_that_take_long_have_no_places(
    channel: grpc.aio.Channel, things: SlowThings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is made, and the others wait for its end."""
    monkeypatch.setattr(servicer, "PRE_START_TIMEOUT", NEVER)
    request = pb.PreStartContainerRequest(devices_ids=["thing0"])
    preparing = [DevicePluginStub(channel).PreStartContainer(request, timeout=PATIENCE) for _ in range(2 * PLACES)]
    await asyncio.wait_for(asyncio.to_thread(things.preparing.wait), PATIENCE)
    assert await allocate(channel) == 1
    things.prepared.set()
    await asyncio.gather(*preparing)
