"""The five RPCs, called over a real socket as a kubelet calls them, and with what no kubelet would send."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import grpc
import pytest

from aosp_plugin.backend import BinderBackend
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.testing import Behaviour, Container, Kubelet, Pod
from tests.support import PATIENCE, RESOURCE, DeviceDirectory, listed, names, problem, ready, running, sockets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from aosp_plugin.framework import DevicePlugin


@contextlib.asynccontextmanager
async def dialled(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> AsyncIterator[tuple[grpc.aio.Channel, Kubelet, DevicePlugin]]:
    """Run a plugin that a kubelet knows, and yield a channel to it."""
    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir) as plugin:
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).messages > 0)
        async with grpc.aio.insecure_channel(f"unix:{os.path.join(kubelet_dir, sockets(kubelet_dir)[0])}") as channel:
            yield channel, kubelet, plugin


def request(*containers: list[str]) -> pb.AllocateRequest:
    """Return a request for containers with these IDs."""
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers])


async def test_options_are_the_same_by_rpc_and_by_register(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """Old kubelets read the options in Register and newer ones ask for them: both learn the same."""
    async with dialled(device_directory, kubelet_dir) as (channel, kubelet, _):
        options = await DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty())
        assert options.get_preferred_allocation_available
        assert not options.pre_start_required
        assert kubelet.registrations[-1].options == options


async def test_two_containers_in_one_request(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """Each container of a request gets a response of its own, in order, with nothing of the other's."""
    device_directory.add(*range(12))
    async with dialled(device_directory, kubelet_dir) as (channel, _, _):
        response = await DevicePluginStub(channel).Allocate(request(names([10, 9, 2]), names([1])))
    first, second = response.container_responses
    assert [device.container_path for device in first.devices] == [f"/dev/{name}" for name in names([2, 9, 10])]
    assert [device.host_path for device in first.devices] == [
        f"{device_directory.directory}/{name}" for name in names([2, 9, 10])
    ]
    assert {device.permissions for device in first.devices} == {"rw"}
    assert dict(first.envs) == {
        "BINDER_VISIBLE_DEVICES": "aosp_binder2,aosp_binder9,aosp_binder10",
        "PATH": "/system/bin:/system/xbin",
    }
    assert [device.container_path for device in second.devices] == ["/dev/aosp_binder1"]
    assert second.envs["BINDER_VISIBLE_DEVICES"] == "aosp_binder1"


async def test_allocate_is_idempotent(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """The same ID may be asked for again, in another request or twice in one: a kubelet never gives one back."""
    device_directory.add(0, 1)
    async with dialled(device_directory, kubelet_dir) as (channel, _, _):
        stub = DevicePluginStub(channel)
        once = await stub.Allocate(request(names([0, 1])))
        assert await stub.Allocate(request(names([1, 0, 1, 0]))) == once


@pytest.mark.parametrize(
    ("containers", "code", "text"),
    [
        ([], grpc.StatusCode.INVALID_ARGUMENT, "names no container"),
        ([["aosp_binder0"], []], grpc.StatusCode.INVALID_ARGUMENT, "no device for container 1"),
        ([["aosp_binder0", "aosp_binder7"]], grpc.StatusCode.NOT_FOUND, "'aosp_binder7' is unknown"),
        ([["aosp_binder0"], ["aosp_binder7"]], grpc.StatusCode.NOT_FOUND, "'aosp_binder7' is unknown"),
        (
            [["aosp_binder0"], ["aosp_binder1"]],
            grpc.StatusCode.FAILED_PRECONDITION,
            "'aosp_binder1' is unhealthy: missing",
        ),
    ],
)
async def test_what_can_not_be_allocated(
    device_directory: DeviceDirectory, kubelet_dir: str, containers: list[list[str]], code: grpc.StatusCode, text: str
) -> None:
    """A request that can't be met as a whole is refused as a whole, with a code and the device's name."""
    device_directory.add(0, 1)
    async with dialled(device_directory, kubelet_dir) as (channel, kubelet, _):
        await listed(kubelet, 2)
        device_directory.remove(1)
        await listed(kubelet, 1)
        with pytest.raises(grpc.aio.AioRpcError, match=text) as refused:
            await DevicePluginStub(channel).Allocate(request(*containers))
        assert refused.value.code() is code


async def test_a_node_that_vanished_a_moment_ago(
    device_directory: DeviceDirectory, kubelet_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocate looks at each node itself, and does not hand out what no event has told of yet."""
    device_directory.add(0, 1)
    async with dialled(device_directory, kubelet_dir) as (channel, kubelet, _):
        await listed(kubelet, 2)
        monkeypatch.setattr("aosp_plugin.framework.events.file_events.Subscription.notify", lambda *_: None)
        device_directory.remove(1)
        with pytest.raises(grpc.aio.AioRpcError, match="'aosp_binder1' is unhealthy: missing") as refused:
            await DevicePluginStub(channel).Allocate(request(names([0, 1])))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert kubelet.resource(RESOURCE).allocatable == 2


async def test_preferred_allocation_of_several_containers(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """Each container of a GetPreferredAllocation gets the lowest neighbours, with what it must include first."""
    device_directory.add(*range(10))
    free = names([9, 8, 7, 6, 4, 2, 1])
    async with dialled(device_directory, kubelet_dir) as (channel, _, _):
        response = await DevicePluginStub(channel).GetPreferredAllocation(
            pb.PreferredAllocationRequest(
                container_requests=[
                    pb.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=3),
                    pb.ContainerPreferredAllocationRequest(
                        available_deviceIDs=free, must_include_deviceIDs=names([4]), allocation_size=3
                    ),
                ]
            )
        )
    chosen = [list(container.deviceIDs) for container in response.container_responses]
    assert chosen == [names([6, 7, 8]), names([4, 1, 2])]


async def test_preferred_allocation_of_nothing(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """A GetPreferredAllocation that names no container is refused."""
    async with dialled(device_directory, kubelet_dir) as (channel, _, _):
        with pytest.raises(grpc.aio.AioRpcError, match="names no container") as refused:
            await DevicePluginStub(channel).GetPreferredAllocation(pb.PreferredAllocationRequest())
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_larger_than_grpc_takes_by_default(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """GetPreferredAllocation carries every free ID, of any length, and may be larger than 4 MiB."""
    device_directory.add(*range(5))
    free = names(range(250_000))
    async with dialled(device_directory, kubelet_dir) as (channel, _, _):
        container = pb.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=3)
        request = pb.PreferredAllocationRequest(container_requests=[container])
        assert request.ByteSize() > 4 * 1024 * 1024
        response = await DevicePluginStub(channel).GetPreferredAllocation(request)
    assert list(response.container_responses[0].deviceIDs) == names(range(3))


async def test_pre_start_container(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """PreStartContainer answers for healthy devices, and refuses unknown ones and an empty request."""
    device_directory.add(0)
    async with dialled(device_directory, kubelet_dir) as (channel, _, _):
        stub = DevicePluginStub(channel)
        assert await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=names([0]))) is not None
        for ids, code in (([], grpc.StatusCode.INVALID_ARGUMENT), (["x"], grpc.StatusCode.NOT_FOUND)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))
            assert refused.value.code() is code


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation", "PreStartContainer"])
async def test_a_malformed_request(device_directory: DeviceDirectory, kubelet_dir: str, method: str) -> None:
    """Bytes that are no message are refused as such, and the stream goes on."""
    device_directory.add(0)
    async with dialled(device_directory, kubelet_dir) as (channel, kubelet, _):
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", request_serializer=bytes, response_deserializer=bytes
        )
        with pytest.raises(grpc.aio.AioRpcError, match="the request is not a valid v1beta1") as refused:
            await call(b"\xff\xff\xff\xff")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        device_directory.add(1)
        await listed(kubelet, 2)


async def test_garbage_on_the_plugins_socket(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """Somebody who speaks no gRPC on the plugin's socket is cut off, and the kubelet's stream goes on."""
    device_directory.add(0)
    async with dialled(device_directory, kubelet_dir) as (_, kubelet, _):
        reader, writer = await asyncio.open_unix_connection(os.path.join(kubelet_dir, sockets(kubelet_dir)[0]))
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
        with contextlib.suppress(ConnectionError):  # a reset, where some of it was not even read
            await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        device_directory.add(1)
        await listed(kubelet, 2)
        assert len(kubelet.registrations) == 1


async def test_a_second_stream_takes_the_place_of_the_first(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    """Of two streams at once the newer one goes on, the older one ends, and no event is lost between them."""
    device_directory.add(0)
    async with dialled(device_directory, kubelet_dir) as (_, kubelet, _):
        await kubelet.open_second_stream(RESOURCE)
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).streams == 1)
        device_directory.add(1)
        await kubelet.wait_for(lambda k: len(k.resource(RESOURCE).devices) == 2)
        assert len(kubelet.registrations) == 1, "a stream that was replaced is not one that was lost"


async def test_no_news_is_no_message(
    device_directory: DeviceDirectory,
    kubelet_dir: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A look that finds what the last one found sends and logs nothing: each message costs the kubelet a checkpoint."""
    device_directory.add(0)
    looked, scan, loop = asyncio.Event(), BinderBackend.scan, asyncio.get_running_loop()

    def refresh_and_tell(backend: BinderBackend, changed: Collection[str] | None = None) -> None:
        scan(backend, changed)
        loop.call_soon_threadsafe(looked.set)

    caplog.set_level("INFO")
    async with dialled(device_directory, kubelet_dir) as (_, kubelet, plugin):
        await listed(kubelet, 1)
        monkeypatch.setattr(BinderBackend, "scan", refresh_and_tell)
        plugin.rescan()
        await asyncio.wait_for(looked.wait(), PATIENCE)
        device_directory.add(1)
        await listed(kubelet, 2)
        assert kubelet.resource(RESOURCE).messages == 2
    assert [record.getMessage() for record in caplog.records].count("devices changed") == 2


async def test_a_burst_is_waited_out(
    device_directory: DeviceDirectory, kubelet_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeviceDirectory that appear while a burst of events settles come with the first message after it."""

    async def debounce(changed: asyncio.Event, _quiet: float, _cap: float) -> None:
        changed.clear()
        if len(os.listdir(device_directory.directory)) == 1:
            device_directory.add(1)
            await changed.wait()

    async with dialled(device_directory, kubelet_dir) as (_, kubelet, _):
        monkeypatch.setattr("aosp_plugin.framework.refresher.debounce", debounce)
        device_directory.add(0)
        await listed(kubelet, 2)
        assert kubelet.resource(RESOURCE).messages == 2


async def test_zero_nodes_are_a_state(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """Without devices the plugin registers, is ready, and advertises new devices when they appear."""
    async with dialled(device_directory, kubelet_dir) as (_, kubelet, plugin):
        assert kubelet.resource(RESOURCE).known
        assert kubelet.resource(RESOURCE).capacity == 0
        await ready(plugin)
        device_directory.add(*range(3))
        await listed(kubelet, 3)


@pytest.mark.parametrize("behaviour", [Behaviour.OLD, Behaviour.NEW])
@pytest.mark.parametrize("count", [1000, 10_000])
async def test_many_nodes(
    device_directory: DeviceDirectory, kubelet_dir: str, behaviour: Behaviour, count: int
) -> None:
    """A large number of devices is advertised in natural order, and each is allocated to one container."""
    device_directory.add(*range(count))
    kubelet = Kubelet(kubelet_dir, behaviour=behaviour, seed=count, checkpoints=False)
    async with kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, count)
        assert list(kubelet.resource(RESOURCE).devices) == names(range(count))
        given: list[str] = []
        for pod in range(10):
            limits = {RESOURCE: count // 20}
            admitted = await kubelet.admit(Pod(f"pod-{pod}", [Container("a", limits), Container("b", limits)]))
            for container in ("a", "b"):
                got = admitted.containers[container]
                visible = got.envs["BINDER_VISIBLE_DEVICES"].split(",")
                assert sorted(visible) == sorted(got.device_ids[RESOURCE])
                assert [device.container_path for device in got.devices] == [f"/dev/{name}" for name in visible]
                given += visible
        assert given == names(range(count)), "each container got the next neighbours"


@pytest.mark.parametrize("seed", range(5))
async def test_ids_in_random_order(device_directory: DeviceDirectory, kubelet_dir: str, seed: int) -> None:
    """Whatever order the kubelet sends IDs in, a container's are told to it in natural order."""
    device_directory.add(*range(20))
    async with Kubelet(kubelet_dir, seed=seed) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 20)
        admitted = await kubelet.admit(Pod("phone", [Container("android", {RESOURCE: 12})]))
    assert admitted.containers["android"].envs["BINDER_VISIBLE_DEVICES"] == ",".join(names(range(12)))


async def test_more_devices_than_a_message_holds(
    device_directory: DeviceDirectory,
    kubelet_dir: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What does not fit into the kubelet's message is left out from the end, is said, and costs no stream."""
    monkeypatch.setattr("aosp_plugin.framework.inventory.Snapshot.__init__.__defaults__", (1000, None))
    device_directory.add(*range(100))
    async with Kubelet(kubelet_dir, max_message=1000) as kubelet, running(device_directory, kubelet_dir) as plugin:
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).capacity > 0)
        view = kubelet.resource(RESOURCE)
        truncated = 100 - view.capacity
        assert 0 < truncated < 100
        assert list(view.devices) == names(range(view.capacity))
        await problem(plugin, f"{truncated} devices do not fit into the kubelet's 4 MiB message limit")
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert [vars(record)["truncated"] for record in errors] == [truncated]
        device_directory.remove(*range(10))
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == view.capacity - 10)
        assert kubelet.resource(RESOURCE).last_message_size <= 1000
