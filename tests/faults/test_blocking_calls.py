"""A backend that blocks or fails on the host: what the kubelet, the loop and other calls notice of it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.errors import WorkerTimeoutError
from aosp_plugin.framework.listed import FoundListed
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.worker import running_calls
from kubelet_standin import Kubelet
from tests.support import IN_LIFE, LOCK, PATIENCE, fds, listed, other_process, ready, run, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub

RESOURCE = "example.com/thing"
SOON_HANGING = IN_LIFE._replace(hang=0.2)


@contextlib.contextmanager
def locked_by_another_process(path: Path) -> Iterator[Callable[[], None]]:
    """Hold a lock on a file in another process; yield the function that releases it."""
    with other_process(LOCK, str(path)) as holder:
        assert holder.stdin is not None
        yield holder.stdin.close


class LockedThings(ListedDevices):
    """Two devices. Each kind of call on the host waits for a lock of its own, without a deadline."""

    pre_start_required = True

    def __init__(self, directory: Path) -> None:
        super().__init__(RESOURCE, self._list, directories=[str(directory)])
        self._directory = directory
        self.preparing = asyncio.Event()
        self.prepared: list[Sequence[str]] = []
        self._loop = asyncio.get_running_loop()

    def lock(self, kind: str) -> Path:
        """Return the lock that ``kind`` waits for: scan, pre_start or close."""
        return self._directory.parent / f"{kind}.lock"

    def _list(self) -> list[str]:
        self._wait_for_lock("scan")
        return [f"/dev/{path.name}" for path in self._directory.iterdir()]

    def pre_start(self, _found: FoundListed, ids: Sequence[str]) -> None:
        """Record the IDs."""
        self._loop.call_soon_threadsafe(self.preparing.set)
        self._wait_for_lock("pre_start")
        self.prepared.append(ids)

    def close(self) -> None:
        """Wait."""
        self._wait_for_lock("close")

    def _wait_for_lock(self, kind: str) -> None:
        with self.lock(kind).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


@pytest.fixture
async def things(tmp_path: Path) -> LockedThings:
    """Return a backend with two devices."""
    directory = tmp_path / "things"
    directory.mkdir()
    (directory / "thing0").touch()
    (directory / "thing1").touch()
    return LockedThings(directory)


@contextlib.asynccontextmanager
async def connected(kubelet: Kubelet) -> AsyncIterator[DevicePluginAsyncStub]:
    """Connect to the plugin beside its kubelet."""
    path = os.path.join(kubelet.directory, kubelet.registrations[-1].endpoint)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield DevicePluginStub(channel)


def allocation(*ids: str) -> pb.AllocateRequest:
    """Return a request for one container."""
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])


async def test_pre_start_that_hangs_exceeds_its_deadline_and_delays_no_other_rpc(
    things: LockedThings, kubelet_dir: str
) -> None:
    """Another process holds a lock. The preparation that started is finished, and done again at the next request."""
    plugin = DevicePlugin(things, kubelet_dir=kubelet_dir, runtime=Runtime(timings=IN_LIFE._replace(pre_start=1.0)))
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await listed(kubelet, 2, RESOURCE)
        with locked_by_another_process(things.lock("pre_start")) as release:
            async with connected(kubelet) as stub:
                request = pb.PreStartContainerRequest(devices_ids=["thing1"])
                preparing = asyncio.ensure_future(stub.PreStartContainer(request, timeout=PATIENCE))
                await until(lambda: bool(running_calls()))
                response = await stub.Allocate(allocation("thing0"), timeout=PATIENCE)
                assert response.container_responses[0].devices[0].host_path == "/dev/thing0"
                with pytest.raises(grpc.aio.AioRpcError, match="device 'thing1' could not be prepared") as late:
                    await preparing
                assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                assert kubelet.resource(RESOURCE).allocatable == 2
                release()
                await stub.PreStartContainer(request, timeout=PATIENCE)
        # Allocate lets its device be prepared as well, if that begins in time.
        assert [names for names in things.prepared if names != ["thing0"]] == [["thing1"], ["thing1"]]


class FragileThings(LockedThings):
    """A device whose preparation fails is lost. The second scan, after the first update of the host, fails."""

    creates_devices = True
    scans = 0

    def scan(self) -> FoundListed:
        """Fail once."""
        self.scans += 1
        if self.scans == 2:
            raise OSError(24, "Too many open files")
        return super().scan()

    def pre_start(self, _found: FoundListed, ids: Sequence[str]) -> None:
        """Fail, against the contract of the interface, with another error."""
        for name in ids:
            (self._directory / name).rename(self._directory.parent / name)
        raise OSError(5, "Input/output error")


@pytest.mark.usefixtures("no_mount_events")
async def test_any_failure_of_pre_start_is_followed_by_a_scan(things: LockedThings, kubelet_dir: str) -> None:
    """Nothing else reports that the device is lost: its directory is not watched."""
    fragile = FragileThings(things._directory)
    fragile._directories = frozenset()
    fragile.scans = 2  # none fails, so none is retried
    plugin = DevicePlugin(fragile, kubelet_dir=kubelet_dir, runtime=Runtime(timings=IN_LIFE))
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await listed(kubelet, 2, RESOURCE)
        async with connected(kubelet) as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="Input/output error") as failure:
                await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["thing1"]), timeout=PATIENCE)
            assert failure.value.code() is grpc.StatusCode.INTERNAL
        await listed(kubelet, 1, RESOURCE)


async def test_scan_after_the_first_update_of_the_host_may_fail(things: LockedThings, kubelet_dir: str) -> None:
    """The scan is retried."""
    fragile = FragileThings(things._directory)
    async with Kubelet(kubelet_dir) as kubelet:
        plugin = DevicePlugin(fragile, kubelet_dir=kubelet_dir, runtime=Runtime(timings=IN_LIFE))
        await plugin.prepare()
        async with run(plugin):
            await listed(kubelet, 2, RESOURCE)
            await ready(plugin)
    assert fragile.scans > 2


async def test_plugin_that_hung_at_its_end_releases_its_descriptors_later(
    things: LockedThings, kubelet_dir: str
) -> None:
    """Nothing else of its process is to have fewer of them."""
    before = fds()["anon_inode:inotify"]
    with locked_by_another_process(things.lock("scan")) as release:
        for _ in range(3):
            plugin = DevicePlugin(things, kubelet_dir=kubelet_dir, runtime=Runtime(timings=SOON_HANGING))
            with pytest.raises(WorkerTimeoutError):
                await plugin.prepare()
            plugin.stop(within=0.1)
            await plugin.run()
        release()
        for thread in threading.enumerate():
            if thread.name == RESOURCE:
                await asyncio.to_thread(thread.join, PATIENCE)
    assert fds()["anon_inode:inotify"] == before
