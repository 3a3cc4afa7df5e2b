"""The five RPCs over a real socket, with valid and invalid requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import Kubelet
from tests.leaks import nothing_kept
from tests.support import (
    PATIENCE,
    RESOURCE,
    DeviceDirectory,
    connected,
    listed,
    names,
    problem,
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


async def answer(connection: Connection, method: str, data: bytes) -> tuple[str, str]:
    """Send bytes as a request; return the code and the text of the answer."""
    call = connection.channel.unary_unary(
        f"/v1beta1.DevicePlugin/{method}", request_serializer=bytes, response_deserializer=bytes
    )(data)
    return (await call.code()).name, await call.details() or ""


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
    # A kubelet never releases an ID, and may request it again, in another request or twice in the same one.
    assert (await connection.stub.Allocate(request(names([2, 10, 9, 2])))).container_responses[0] == first


async def test_preferred_allocation_returns_the_lowest_neighbours_per_container(connection: Connection) -> None:
    """The request carries every free ID, which may be more than gRPC's default limit of 4 MiB."""
    await connection.add(10)
    free = [*names([9, 8, 7, 6, 4, 2, 1]), *names(range(10, 250_000))]
    containers = [
        pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=free, must_include_deviceIDs=names(included), allocation_size=3
        )
        for included in ([], [4])
    ]
    request = pb.PreferredAllocationRequest(container_requests=containers)
    assert request.ByteSize() > 4 * 1024 * 1024
    response = await connection.stub.GetPreferredAllocation(request)
    chosen = [list(container.deviceIDs) for container in response.container_responses]
    assert chosen == [names([6, 7, 8]), names([4, 1, 2])]


def allocate(*containers: list[str]) -> bytes:
    return request(*containers).SerializeToString()


def pre_start(device_id: str) -> bytes:
    return pb.PreStartContainerRequest(devices_ids=[device_id]).SerializeToString()


PATHS = ("../../etc/passwd", "b/.", "aosp_binder0\0", "aosp_binder0\nlevel=ERROR", "aosp_binder0::1", "", "..")
INVALID = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("method", "data", "code", "text"),
    [
        ("Allocate", INVALID, "INVALID_ARGUMENT", "the request is not a valid v1beta1"),
        ("Allocate", b"", "INVALID_ARGUMENT", "names no container"),
        ("Allocate", allocate(["aosp_binder0"], []), "INVALID_ARGUMENT", "no device for container 1"),
        ("Allocate", allocate(["aosp_binder0", "aosp_binder7"]), "NOT_FOUND", "'aosp_binder7' is unknown"),
        ("Allocate", allocate(["aosp_binder0"], ["aosp_binder7"]), "NOT_FOUND", "'aosp_binder7' is unknown"),
        ("Allocate", allocate(["aosp_binder1"]), "FAILED_PRECONDITION", "'aosp_binder1' is unhealthy: missing"),
        ("GetPreferredAllocation", INVALID, "INVALID_ARGUMENT", "the request is not a valid v1beta1"),
        ("GetPreferredAllocation", b"", "INVALID_ARGUMENT", "names no container"),
        ("PreStartContainer", INVALID, "INVALID_ARGUMENT", "the request is not a valid v1beta1"),
        ("PreStartContainer", b"", "INVALID_ARGUMENT", "names no device"),
        *(("Allocate", allocate(["aosp_binder0", path]), "NOT_FOUND", f"device {path!r} is unknown") for path in PATHS),
        *(("PreStartContainer", pre_start(path), "NOT_FOUND", f"device {path!r} is unknown") for path in PATHS),
    ],
)
async def test_invalid_request_is_refused_as_a_whole(
    connection: Connection, method: str, data: bytes, code: str, text: str
) -> None:
    """The error quotes an ID in one line. Nothing is left of the request."""
    await connection.add(2)
    connection.devices.remove(1)
    await listed(connection.kubelet, 1)
    async with nothing_kept():
        found, details = await answer(connection, method, data)
    assert (found, text in details) == (code, True)


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
            code, _ = await answer(connection, method, data)
            assert code in {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}
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
