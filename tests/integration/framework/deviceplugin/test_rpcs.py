"""The five RPCs over a real socket, with valid and invalid requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.listed import FoundListed
from aosp_plugin.framework.runtime import Runtime
from kubelet_standin import Kubelet
from tests.support import (
    IN_LIFE,
    PATIENCE,
    RESOURCE,
    DeviceDirectory,
    connected,
    listed,
    names,
    problem,
    run,
    running,
    sockets,
    unready,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub


class Connection(NamedTuple):
    """A connection to a registered plugin, its kubelet and its device directory."""

    channel: grpc.aio.Channel
    stub: DevicePluginAsyncStub
    kubelet: Kubelet
    plugin: DevicePlugin
    devices: DeviceDirectory

    async def add(self, count: int) -> None:
        """Create so many devices, and wait until the kubelet lists them."""
        self.devices.add(*range(count))
        await listed(self.kubelet, count)


@pytest.fixture
async def connection(device_directory: DeviceDirectory, kubelet: Kubelet) -> AsyncIterator[Connection]:
    """Run a plugin without devices, and connect to it."""
    async with running(device_directory, kubelet.directory) as plugin:
        await listed(kubelet, 0)
        async with connected(kubelet) as channel:
            yield Connection(channel, DevicePluginStub(channel), kubelet, plugin, device_directory)


def request(*containers: list[str]) -> pb.AllocateRequest:
    """Return an Allocate request with these IDs per container."""
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers])


def unary(connection: Connection, method: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """Return an RPC that takes and returns bytes."""
    return connection.channel.unary_unary(
        f"/v1beta1.DevicePlugin/{method}", request_serializer=bytes, response_deserializer=bytes
    )


async def test_each_container_of_a_request_gets_its_own_response(connection: Connection) -> None:
    await connection.add(12)
    response = await connection.stub.Allocate(request(names([10, 9, 2]), names([1])))
    first, second = response.container_responses
    assert [(device.host_path, device.container_path, device.permissions) for device in first.devices] == [
        (f"{connection.devices.directory}/{name}", f"/dev/{name}", "rw") for name in names([2, 9, 10])
    ]
    assert dict(first.envs) == {
        "BINDER_VISIBLE_DEVICES": "aosp_binder2,aosp_binder9,aosp_binder10",
        "PATH": "/system/bin:/system/xbin",
    }
    assert [device.container_path for device in second.devices] == ["/dev/aosp_binder1"]
    assert second.envs["BINDER_VISIBLE_DEVICES"] == "aosp_binder1"


async def test_allocate_is_idempotent(connection: Connection) -> None:
    """A kubelet never releases an ID, and may request it again, in another request or twice in the same one."""
    await connection.add(2)
    once = await connection.stub.Allocate(request(names([0, 1])))
    assert await connection.stub.Allocate(request(names([1, 0, 1, 0]))) == once


@pytest.mark.parametrize(
    ("containers", "code", "text"),
    [
        ([], "INVALID_ARGUMENT", "names no container"),
        ([["aosp_binder0"], []], "INVALID_ARGUMENT", "no device for container 1"),
        ([["aosp_binder0", "aosp_binder7"]], "NOT_FOUND", "'aosp_binder7' is unknown"),
        ([["aosp_binder0"], ["aosp_binder7"]], "NOT_FOUND", "'aosp_binder7' is unknown"),
        ([["aosp_binder0"], ["aosp_binder1"]], "FAILED_PRECONDITION", "'aosp_binder1' is unhealthy: missing"),
    ],
)
async def test_invalid_allocation_is_refused_as_a_whole(
    connection: Connection, containers: list[list[str]], code: str, text: str
) -> None:
    await connection.add(2)
    connection.devices.remove(1)
    await listed(connection.kubelet, 1)
    with pytest.raises(grpc.aio.AioRpcError, match=text) as refused:
        await connection.stub.Allocate(request(*containers))
    assert refused.value.code().name == code


async def test_preferred_allocation_returns_the_lowest_neighbours_per_container(connection: Connection) -> None:
    await connection.add(10)
    free = names([9, 8, 7, 6, 4, 2, 1])
    containers = [
        pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=free, must_include_deviceIDs=names(included), allocation_size=3
        )
        for included in ([], [4])
    ]
    response = await connection.stub.GetPreferredAllocation(
        pb.PreferredAllocationRequest(container_requests=containers)
    )
    chosen = [list(container.deviceIDs) for container in response.container_responses]
    assert chosen == [names([6, 7, 8]), names([4, 1, 2])]


async def test_request_may_exceed_the_default_limit_of_grpc(connection: Connection) -> None:
    """GetPreferredAllocation carries every free ID, which may be more than 4 MiB."""
    await connection.add(5)
    container = pb.ContainerPreferredAllocationRequest(available_deviceIDs=names(range(250_000)), allocation_size=3)
    request = pb.PreferredAllocationRequest(container_requests=[container])
    assert request.ByteSize() > 4 * 1024 * 1024
    response = await connection.stub.GetPreferredAllocation(request)
    assert list(response.container_responses[0].deviceIDs) == names(range(3))


@pytest.mark.parametrize(
    ("method", "data", "code", "text"),
    [
        ("Allocate", b"\xff\xff\xff\xff", "INVALID_ARGUMENT", "the request is not a valid v1beta1"),
        ("GetPreferredAllocation", b"\xff\xff\xff\xff", "INVALID_ARGUMENT", "the request is not a valid v1beta1"),
        ("GetPreferredAllocation", b"", "INVALID_ARGUMENT", "names no container"),
        ("PreStartContainer", b"\xff\xff\xff\xff", "INVALID_ARGUMENT", "the request is not a valid v1beta1"),
        ("PreStartContainer", b"", "INVALID_ARGUMENT", "names no device"),
        ("PreStartContainer", b"\x0a\x01x", "NOT_FOUND", "'x' is unknown"),
    ],
)
async def test_invalid_request_is_refused(
    connection: Connection, method: str, data: bytes, code: str, text: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=text) as refused:
        await unary(connection, method)(data)
    assert refused.value.code().name == code


PATHS = [
    "../../etc/passwd",
    "aosp_binder0/.",
    "aosp_binder0\0",
    "aosp_binder0\nlevel=ERROR",
    "aosp_binder0::1",
    "",
    ".",
]


async def test_device_id_that_is_a_path_is_unknown(connection: Connection) -> None:
    """The error quotes the ID in one line."""
    await connection.add(1)
    for path in PATHS:
        for call in (
            connection.stub.Allocate(request(["aosp_binder0", path])),
            connection.stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=[path])),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND
            assert raised.value.details() == f"device {path!r} is unknown"
    await listed(connection.kubelet, 1)


@pytest.mark.parametrize("umask", [0o000, 0o077])
async def test_socket_is_private_under_any_umask(
    device_directory: DeviceDirectory, kubelet_dir: str, umask: int
) -> None:
    """Other users cannot request devices in the name of the kubelet."""
    before = os.umask(umask)
    try:
        async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir):
            await listed(kubelet, 0)
            (socket,) = sockets(kubelet_dir)
            assert os.stat(f"{kubelet_dir}/{socket}").st_mode & (stat.S_IRWXG | stat.S_IRWXO) == 0
    finally:
        os.umask(before)


async def test_arbitrary_bytes_end_no_other_stream(connection: Connection) -> None:
    """As a request they get OK or a documented code, and as the start of a connection they end only that one."""
    rng = random.Random(20260101)  # noqa: S311 - repeatable, not secret
    await connection.add(2)
    path = os.path.join(connection.kubelet.directory, connection.kubelet.registrations[-1].endpoint)
    for _ in range(50):
        data = rng.randbytes(rng.randrange(40))
        for method in ("Allocate", "GetPreferredAllocation", "PreStartContainer"):
            answer = unary(connection, method)(data)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await answer
            assert (await answer.code()).name in {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}
        reader, writer = await asyncio.open_unix_connection(path)
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
    connection.devices.add(2)
    await listed(connection.kubelet, 3)
    assert connection.kubelet.resource(RESOURCE).streams_opened == 1


@contextlib.asynccontextmanager
async def foreign_stream(kubelet: Kubelet) -> AsyncIterator[Any]:
    """Call ListAndWatch as a debugging tool on the host does, from when its first message has arrived."""
    async with connected(kubelet) as channel:
        stream = DevicePluginStub(channel).ListAndWatch(pb.Empty())
        await asyncio.wait_for(stream.read(), PATIENCE)
        yield stream


async def test_stream_of_another_client_takes_nothing_from_the_kubelet(connection: Connection) -> None:
    """Neither its begin nor its end does. Both get each change, and the kubelet's stream still counts alone."""
    kubelet = connection.kubelet
    await connection.add(1)
    async with foreign_stream(kubelet) as ending, foreign_stream(kubelet) as lasting:
        ending.cancel()
        connection.devices.add(1)
        await listed(kubelet, 2)
        assert len((await asyncio.wait_for(lasting.read(), PATIENCE)).devices) == 2
        view = kubelet.resource(RESOURCE)
        assert (len(kubelet.registrations), view.streams_opened, unready(connection.plugin)) == (1, 1, "")
        await kubelet.drop_streams()
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        assert not await asyncio.wait_for(lasting.read(), PATIENCE)  # the end of the stream
        await listed(kubelet, 2)


async def test_device_list_is_truncated_at_the_message_limit(
    device_directory: DeviceDirectory,
    kubelet_dir: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The last devices are missing, which readiness reports; the stream stays open."""
    monkeypatch.setattr("aosp_plugin.framework.inventory.Snapshot.__init__.__defaults__", (1000,))
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


class WornDevices(ListedDevices):
    """One unhealthy device, which this backend would give away."""

    def scan(self) -> FoundListed:
        """Return the device."""
        found = super().scan()
        return replace(found, devices=[device._replace(reason="worn") for device in found.devices])


async def test_unhealthy_device_is_refused_without_asking_the_backend(kubelet: Kubelet) -> None:
    things = WornDevices(RESOURCE, lambda: ["/dev/thing0"])
    async with run(DevicePlugin(things, kubelet_dir=kubelet.directory, runtime=Runtime(timings=IN_LIFE))):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).capacity == 1)
        async with connected(kubelet) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="'thing0' is unhealthy: worn") as refused:
                await DevicePluginStub(channel).Allocate(request(["thing0"]))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
