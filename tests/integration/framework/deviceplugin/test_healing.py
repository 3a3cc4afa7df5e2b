"""Recovery of the registration from everything that can fail between a kubelet and the plugin."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.errors import WorkerTimeoutError
from aosp_plugin.framework.registration import STABLE, Loss
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Clock, Timings
from kubelet_standin import AdmissionError, Container, Kubelet, KubeletVersion, Pod
from tests.support import (
    FAST,
    IN_LIFE,
    PATIENCE,
    RESOURCE,
    DeviceDirectory,
    connected,
    fds,
    listed,
    make_plugin,
    problem,
    ready,
    run,
    running,
    sockets,
    until,
)

LONG_PAUSES = IN_LIFE._replace(first_pause=3600.0, longest_pause=3600.0)
"""The pause after the second failure in a row is longer than any test."""


class QuickClock(Clock):
    """A clock that a test moves, except that pauses after failures pass at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        """Return the current time."""
        return self.now

    async def wait(self, *events: asyncio.Event, timeout: float | None = None) -> bool:
        """Wait for an event, or for the time to pass."""
        if timeout is None or not LONG_PAUSES.first_pause / 2 <= timeout <= 1e6:
            return await super().wait(*events, timeout=timeout)
        self.pauses.append(timeout)
        self.now += timeout
        return False


async def restart(kubelet: Kubelet) -> None:
    """Restart the kubelet, which removes the plugin's socket."""
    await kubelet.restart()


async def remove_socket(kubelet: Kubelet) -> None:
    """Remove the plugin's socket; the stream stays open."""
    os.unlink(plugin_socket(kubelet))


async def replace_socket(kubelet: Kubelet) -> None:
    """Replace the plugin's socket with another one; the stream stays open."""
    path = plugin_socket(kubelet)
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(path + ".new")
        os.rename(path + ".new", path)


async def drop_streams(kubelet: Kubelet) -> None:
    """End the stream; the kubelet never opens another one."""
    await kubelet.drop_streams()


def plugin_socket(kubelet: Kubelet) -> str:
    """Return the path of the registered socket."""
    return os.path.join(kubelet.directory, kubelet.registrations[-1].endpoint)


@pytest.mark.parametrize(
    ("damage", "kubelet_version"),
    [
        *((damage, KubeletVersion.V1_37) for damage in (restart, remove_socket, replace_socket, drop_streams)),
        (remove_socket, KubeletVersion.V1_36),
    ],
)
async def test_plugin_registers_again_over_a_new_socket(
    device_directory: DeviceDirectory, kubelet: Kubelet, damage: Callable[[Kubelet], Awaitable[None]]
) -> None:
    """All devices return, and the old server no longer answers.

    It stops first: kubelets before 1.37 confuse two plugins of the same resource, and must never see both.
    """
    device_directory.add(*range(5))
    async with running(device_directory, kubelet.directory):
        await listed(kubelet, 5)
        for _ in range(3):
            path = plugin_socket(kubelet)
            async with grpc.aio.insecure_channel(f"unix:{path}") as old:
                await DevicePluginStub(old).GetDevicePluginOptions(pb.Empty())
                await damage(kubelet)
                await kubelet.wait_for(lambda k, path=path: plugin_socket(k) != path)  # type: ignore[misc]
                await listed(kubelet, 5)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await DevicePluginStub(old).GetDevicePluginOptions(pb.Empty())
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert kubelet.resource(RESOURCE).streams == 1


@pytest.mark.parametrize(
    ("fault", "value", "reason"),
    [
        ("never_open_stream", True, "did not request its devices"),
        ("hang_register", True, "DEADLINE_EXCEEDED"),
        ("refuse_register", "failed to dial device plugin: context deadline exceeded", "failed to dial device plugin"),
        ("garbage_register", True, "registration failed, retrying"),
    ],
)
async def test_failed_registration_is_retried(
    device_directory: DeviceDirectory,
    kubelet_dir: str,
    fault: str,
    value: bool | str,  # noqa: FBT001 - the value of a fault
    reason: str,
) -> None:
    device_directory.add(0)
    kubelet = Kubelet(kubelet_dir)
    setattr(kubelet.faults, fault, value)
    async with kubelet, running(device_directory, kubelet_dir, timings=FAST) as plugin:
        await problem(plugin, reason)
        setattr(kubelet.faults, fault, type(value)() or None)
        await kubelet.restart()
        await listed(kubelet, 1)


async def test_kubelet_restart_ends_the_pause(device_directory: DeviceDirectory, kubelet: Kubelet) -> None:
    """The plugin registers at once, however long the pause after failures is."""
    device_directory.add(0)
    kubelet.faults.refuse_register = "not today"
    async with running(device_directory, kubelet.directory, timings=LONG_PAUSES):
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        kubelet.faults.refuse_register = None
        await kubelet.restart()
        await listed(kubelet, 1)


async def test_lost_registration_that_was_stable_is_renewed_at_once(
    device_directory: DeviceDirectory, kubelet: Kubelet
) -> None:
    """Otherwise each loss in the life of a process would take longer to repair than the one before."""
    device_directory.add(0)
    clock = QuickClock()
    plugin = make_plugin(device_directory, kubelet.directory, timings=LONG_PAUSES, clock=clock)
    async with run(plugin):
        for count in range(1, 5):
            await kubelet.wait_for(lambda k, count=count: len(k.registrations) == count)  # type: ignore[misc]
            await listed(kubelet, 1)
            await ready(plugin)
            clock.now += STABLE
            await drop_streams(kubelet)
    assert clock.pauses == []


async def test_pauses_grow_until_a_registration_is_stable(device_directory: DeviceDirectory, kubelet: Kubelet) -> None:
    device_directory.add(0)
    clock = QuickClock()
    timings = LONG_PAUSES._replace(longest_pause=1e6, safety=1e9)
    kubelet.faults.refuse_register = "not today"
    plugin = make_plugin(device_directory, kubelet.directory, timings=timings, clock=clock)
    async with run(plugin):
        await until(lambda: len(clock.pauses) >= 4)
        kubelet.faults.refuse_register = None
        await listed(kubelet, 1)
        await ready(plugin)
        before = len(clock.pauses)
        clock.now += STABLE
        kubelet.faults.refuse_register = "not today"
        await drop_streams(kubelet)
        await until(lambda: len(clock.pauses) > before)
    assert clock.pauses[0] <= timings.first_pause < 4 * timings.first_pause <= clock.pauses[3]
    assert clock.pauses[before] <= timings.first_pause


async def test_missing_kubelet_socket_ends_no_registration(device_directory: DeviceDirectory, kubelet: Kubelet) -> None:
    """The stream shows that the kubelet is there."""
    device_directory.add(0)
    async with running(device_directory, kubelet.directory) as plugin:
        await listed(kubelet, 1)
        await ready(plugin)
        endpoint = plugin.registration.registered_endpoint
        os.unlink(f"{kubelet.directory}/kubelet.sock")
        device_directory.add(1)
        await listed(kubelet, 2)
        assert (plugin.registration.registered_endpoint, kubelet.resource(RESOURCE).streams_opened) == (endpoint, 1)


class SlowStart(ListedDevices):
    """A device whose preparation for PreStartContainer lasts until a test ends it. The one after Allocate is quick."""

    pre_start_required = True

    def __init__(self) -> None:
        self.devices = ["/dev/a"]
        super().__init__(RESOURCE, lambda: self.devices, directories=())
        self.allocated = False
        self.begun, self.end = threading.Event(), threading.Event()

    def pre_start(self, _found: object, _ids: object) -> None:
        """Wait, except in the first call, which follows Allocate: the kubelet may not have sent its request yet."""
        if not self.allocated:
            self.allocated = True
            return
        self.begun.set()
        assert self.end.wait(PATIENCE)


@contextlib.asynccontextmanager
async def lost_during_a_start(
    kubelet: Kubelet, backend: SlowStart, timings: Timings = IN_LIFE
) -> AsyncIterator[asyncio.Task[Any]]:
    """Run a plugin whose registration breaks while a container waits for PreStartContainer; yield its start."""
    pod = Pod("game", [Container("main", {RESOURCE: 1})])
    plugin = DevicePlugin(backend, kubelet_dir=kubelet.directory, runtime=Runtime(timings=timings))
    async with run(plugin):
        await listed(kubelet, 1)
        await ready(plugin)
        await kubelet.admit(pod)
        starting = asyncio.create_task(kubelet.start_container(pod, "main"))
        assert await asyncio.to_thread(backend.begun.wait, PATIENCE)
        plugin.registration.reregister(Loss.FEWER_DEVICES)
        await problem(plugin, "connection to kubelet lost")
        yield starting


@pytest.mark.parametrize("kubelet_version", KubeletVersion)
async def test_a_container_that_starts_gets_its_answer_before_the_registration_is_renewed(kubelet: Kubelet) -> None:
    """A kubelet that lives closes the connection when its stream ends, and the container would back off."""
    backend = SlowStart()
    async with lost_during_a_start(kubelet, backend) as starting:
        backend.end.set()
        await starting
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        await listed(kubelet, 1)


async def test_a_container_that_starts_does_not_delay_the_stop(kubelet: Kubelet) -> None:
    backend = SlowStart()
    async with lost_during_a_start(kubelet, backend, IN_LIFE._replace(pre_start=3600.0)) as starting:
        pass
    with pytest.raises(AdmissionError):
        await starting
    backend.end.set()


PRE_START = pb.PreStartContainerRequest(devices_ids=["a"])


async def test_devices_are_scanned_when_a_preparation_that_took_too_long_has_ended(kubelet: Kubelet) -> None:
    """It may have changed what no event reports. It delays no other RPC, and is done again at the next request."""
    backend = SlowStart()
    backend.allocated = True
    runtime = Runtime(timings=IN_LIFE._replace(pre_start=1.0))
    async with run(DevicePlugin(backend, kubelet_dir=kubelet.directory, runtime=runtime)):
        await listed(kubelet, 1)
        async with connected(kubelet) as channel:
            stub = DevicePluginStub(channel)
            late = stub.PreStartContainer(PRE_START)
            assert await asyncio.to_thread(backend.begun.wait, PATIENCE)
            container = pb.ContainerAllocateRequest(devices_ids=["a"])
            allocated = await stub.Allocate(pb.AllocateRequest(container_requests=[container]))
            assert allocated.container_responses[0].devices[0].host_path == "/dev/a"
            assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "could not be prepared" in await late.details()
            assert kubelet.resource(RESOURCE).allocatable == 1
            backend.devices = ["/dev/a", "/dev/b"]
            backend.end.set()
            await listed(kubelet, 2)
            backend.begun.clear()
            await stub.PreStartContainer(PRE_START)
            assert backend.begun.is_set()


@pytest.mark.usefixtures("no_mount_events")
async def test_any_failure_of_pre_start_is_followed_by_a_scan(kubelet: Kubelet) -> None:
    """Nothing else reports that the device is lost. The error is none of those in the contract of the interface."""
    backend = SlowStart()

    def lose(_found: object, _ids: object) -> None:
        backend.devices = []
        raise OSError(5, "Input/output error")

    backend.pre_start = lose  # type: ignore[method-assign]
    runtime = Runtime(timings=IN_LIFE)
    async with run(DevicePlugin(backend, kubelet_dir=kubelet.directory, runtime=runtime)):
        await listed(kubelet, 1)
        async with connected(kubelet) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="Input/output error"):
                await DevicePluginStub(channel).PreStartContainer(PRE_START)
        await listed(kubelet, 0)


async def test_plugin_that_hung_at_its_end_releases_its_descriptors_later(kubelet_dir: str) -> None:
    """Nothing else of its process is to have fewer of them."""
    before, ended = fds()["anon_inode:inotify"], threading.Event()

    def hang() -> list[str]:
        assert ended.wait(PATIENCE)
        return []

    for _ in range(3):
        runtime = Runtime(timings=IN_LIFE._replace(hang=0.2))
        plugin = DevicePlugin(ListedDevices(RESOURCE, hang), kubelet_dir=kubelet_dir, runtime=runtime)
        with pytest.raises(WorkerTimeoutError):
            await plugin.prepare()
        plugin.stop(within=0.1)
        await plugin.run()
    ended.set()
    for thread in threading.enumerate():
        if thread.name == RESOURCE:
            await asyncio.to_thread(thread.join, PATIENCE)
    assert fds()["anon_inode:inotify"] == before


@pytest.mark.parametrize("inotify", [True, False])
async def test_recovery_by_events_or_by_polling_alone(
    device_directory: DeviceDirectory,
    kubelet_dir: str,
    request: pytest.FixtureRequest,
    *,
    inotify: bool,
) -> None:
    """With inotify, nothing waits for the next periodic scan."""
    timings = IN_LIFE._replace(poll=3600.0, safety=3600.0) if inotify else IN_LIFE._replace(poll=0.05)
    if not inotify:
        request.getfixturevalue("no_inotify")
    async with running(device_directory, kubelet_dir, timings=timings) as plugin:
        await problem(plugin, "there is no")
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 0)
            device_directory.add(0)
            await listed(kubelet, 1)
            await remove_socket(kubelet)
            await kubelet.wait_for(lambda k: len(k.registrations) == 2)
            await kubelet.restart()
            await listed(kubelet, 1)


def refuse_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_plugin_that_may_start_no_thread_registers_again(
    device_directory: DeviceDirectory, kubelet: Kubelet
) -> None:
    """For example because of ``pids.max``."""
    device_directory.add(1, 2)
    async with running(device_directory, kubelet.directory):
        await listed(kubelet, 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse_thread)
            await kubelet.restart()
            await listed(kubelet, 2)
        assert len(sockets(kubelet.directory)) == 1
        assert list(kubelet.resource(RESOURCE).devices) == ["aosp_binder1", "aosp_binder2"]
