"""Staying registered: whatever breaks between a kubelet and the plugin, the devices come back by themselves."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from aosp_plugin.errors import KubeletDirectoryError, RegistrationFailedError, RegistrationRefusedError
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory, register
from aosp_plugin.testing import Behaviour, Kubelet
from tests.support import (
    FAST,
    IN_LIFE,
    PATIENCE,
    RESOURCE,
    DeviceDirectory,
    listed,
    make_plugin,
    problem,
    ready,
    running,
    sockets,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Damaged = Callable[[], None]


async def test_a_kubelet_that_is_not_there_yet(
    device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged
) -> None:
    """A plugin that starts before its kubelet registers as soon as kubelet.sock appears."""
    device_directory.add(0, 1, 2)
    async with running(device_directory, kubelet_dir) as plugin:
        await problem(plugin, "there is no")
        healed()
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 3)
            await ready(plugin)


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the second failure in a row followed by a pause that no test outlasts."""
    monkeypatch.setattr("aosp_plugin.framework.deviceplugin.backoff.FIRST", 3600.0)
    monkeypatch.setattr("aosp_plugin.framework.deviceplugin.backoff.CAP", 3600.0)


@pytest.mark.usefixtures("long_pauses")
async def test_a_stale_socket_that_refuses_connections(
    device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged
) -> None:
    """The socket that a dead kubelet left behind is tried in vain, and the next kubelet is found by the first try."""
    device_directory.add(0, 1)
    async with Kubelet(kubelet_dir):
        pass
    assert os.listdir(kubelet_dir) == ["kubelet.sock"]
    async with running(device_directory, kubelet_dir) as plugin:
        await problem(plugin, "Connection refused")
        healed()
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 2)


@pytest.mark.parametrize("behaviour", Behaviour)
async def test_the_kubelet_restarts(
    device_directory: DeviceDirectory, kubelet_dir: str, behaviour: Behaviour, healed: Damaged
) -> None:
    """A kubelet that restarts, and sweeps the plugin's socket away, has all devices back over a new socket."""
    device_directory.add(*range(5))
    async with Kubelet(kubelet_dir, behaviour=behaviour) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 5)
        before = kubelet.registrations[-1].endpoint
        healed()
        await kubelet.restart()
        await listed(kubelet, 5)
        assert kubelet.registrations[-1].endpoint != before
        assert sockets(kubelet_dir) == [kubelet.registrations[-1].endpoint]


@pytest.mark.parametrize("behaviour", Behaviour)
async def test_the_own_socket_is_gone(
    device_directory: DeviceDirectory, kubelet_dir: str, behaviour: Behaviour, healed: Damaged
) -> None:
    """A plugin whose socket somebody removed registers again, though its stream still goes on."""
    device_directory.add(0, 1)
    async with Kubelet(kubelet_dir, behaviour=behaviour) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 2)
        healed()
        os.unlink(os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint))
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        await listed(kubelet, 2)


async def test_the_own_socket_is_anothers(device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged) -> None:
    """A plugin whose socket's name was taken by another file registers again."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 1)
        path = os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint)
        healed()
        with socket.socket(socket.AF_UNIX) as impostor:
            impostor.bind(path + ".new")
            os.rename(path + ".new", path)
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        await listed(kubelet, 1)


async def test_kubelet_sock_is_made_anew(device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged) -> None:
    """Another kubelet on the same path is registered with, though the first one neither ended nor swept a thing."""
    device_directory.add(0, 1, 2)
    async with Kubelet(kubelet_dir) as first, running(device_directory, kubelet_dir):
        await listed(first, 3)
        healed()
        elsewhere = f"{kubelet_dir}-second"
        async with Kubelet(elsewhere) as second:
            os.rename(second.socket_path, os.path.join(kubelet_dir, "kubelet.sock"))
            await second.wait_for(lambda k: len(k.registrations) == 1)
        shutil.rmtree(elsewhere)
        assert not first.resource(RESOURCE).connected


@pytest.mark.parametrize("behaviour", Behaviour)
async def test_a_stream_ends_unasked(
    device_directory: DeviceDirectory, kubelet_dir: str, behaviour: Behaviour, healed: Damaged
) -> None:
    """A kubelet that drops the stream, which it never opens again, is registered with again."""
    device_directory.add(0, 1)
    async with Kubelet(kubelet_dir, behaviour=behaviour) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 2)
        healed()
        await kubelet.drop_streams()
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        await listed(kubelet, 2)


async def test_no_stream_after_register(device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged) -> None:
    """A kubelet that takes the registration and never asks for the devices is registered with again."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.never_open_stream = True
        async with running(device_directory, kubelet_dir, timings=FAST) as plugin:
            healed()
            await problem(plugin, "did not request its devices")
            kubelet.faults.never_open_stream = False
            await listed(kubelet, 1)


async def test_register_hangs(device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged) -> None:
    """A Register that is never answered ends at its deadline and is tried again."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.hang_register = True
        async with running(device_directory, kubelet_dir, timings=FAST) as plugin:
            healed()
            await problem(plugin, "DEADLINE_EXCEEDED")
            kubelet.faults.hang_register = False
            await listed(kubelet, 1)


async def test_a_socket_swept_while_register_is_under_way(
    device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged
) -> None:
    """A kubelet that sweeps the socket and then dials it in vain does not keep the plugin for as long as it dials."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.hang_register = True
        async with running(device_directory, kubelet_dir, timings=IN_LIFE._replace(register=60, stream=60)):
            await kubelet.wait_for(lambda k: len(k.registrations) == 1)
            kubelet.faults.hang_register = False
            healed()
            os.unlink(os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint))
            await listed(kubelet, 1)


async def test_a_socket_swept_before_it_is_served(
    device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that sweeps the socket between its bind and the first call on it is registered with over the next."""
    device_directory.add(0)
    swept: list[str] = []

    def chmod(path: str, mode: int, real: Callable[[str, int], None] = os.chmod) -> None:
        if not swept:
            os.unlink(path)
            swept.append(os.path.basename(path))
        real(path, mode)

    async with Kubelet(kubelet_dir) as kubelet:
        monkeypatch.setattr(os, "chmod", chmod)
        healed()
        async with running(device_directory, kubelet_dir):
            await listed(kubelet, 1)
            assert kubelet.registrations[-1].endpoint not in swept


async def test_a_refusal_that_can_heal(device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged) -> None:
    """A kubelet that refuses for a reason of its own is asked again until it takes the plugin."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse_register = "failed to dial device plugin: context deadline exceeded"
        async with running(device_directory, kubelet_dir) as plugin:
            await problem(plugin, "failed to dial device plugin")
            healed()
            kubelet.faults.refuse_register = None
            await listed(kubelet, 1)


@pytest.mark.usefixtures("long_pauses")
async def test_another_kubelet_ends_the_pause(
    device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged
) -> None:
    """However long the pause after failures is, a kubelet that starts is registered with at once."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse_register = "not today"
        async with running(device_directory, kubelet_dir):
            await kubelet.wait_for(lambda k: len(k.registrations) == 2)
            kubelet.faults.refuse_register = None
            healed()
            await kubelet.restart()
            await listed(kubelet, 1)


async def test_a_refusal_leaves_no_connection(kubelet_dir: str) -> None:
    """Not even where the errors are kept, as they are in reference cycles until the collector comes."""
    request = pb.RegisterRequest(version="v1beta1", endpoint="none.sock", resource_name=RESOURCE)
    errors: list[RegistrationFailedError] = []

    async def try_in_vain() -> None:
        try:
            await register(kubelet.socket_path, request, 20.0)
        except RegistrationFailedError as error:
            errors.append(error)

    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse_register = "not today"
        await try_in_vain()
        before = connections()
        for _ in range(5):
            await try_in_vain()
        assert len(errors) == 6
        async with asyncio.timeout(PATIENCE):
            while connections() > before:  # noqa: ASYNC110 - gRPC closes them in a thread, and tells nobody
                await asyncio.sleep(0.01)


def connections() -> int:
    """Return how many sockets this process has."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(link) and os.readlink(link).startswith("socket:") for link in links)


async def test_garbage_from_the_kubelet(device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged) -> None:
    """Something on kubelet.sock that speaks no gRPC is tried again, and the kubelet that follows it is found."""
    device_directory.add(0)
    kubelet = Kubelet(kubelet_dir)
    kubelet.faults.garbage_register = True
    await kubelet.start()
    async with running(device_directory, kubelet_dir) as plugin:
        await problem(plugin, "registration failed, retrying")
        kubelet.faults.garbage_register = False
        healed()
        await kubelet.restart()
        await listed(kubelet, 1)
    await kubelet.stop()


async def test_the_directory_is_replaced(device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged) -> None:
    """A kubelet directory that is removed and made again, as by a reinstalled kubelet, is taken up."""
    device_directory.add(0, 1)
    async with running(device_directory, kubelet_dir) as plugin:
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 2)
        os.rename(kubelet_dir, f"{kubelet_dir}-old")
        await problem(plugin, "there is no")
        healed()
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 2)
    shutil.rmtree(f"{kubelet_dir}-old")


async def test_the_directory_comes_back(device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged) -> None:
    """A directory that was moved away and back is taken up again, and the socket that was left in it is removed."""
    device_directory.add(0)
    async with running(device_directory, kubelet_dir) as plugin:
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 1)
            (left,) = sockets(kubelet_dir)
            os.rename(kubelet_dir, f"{kubelet_dir}-away")
            await problem(plugin, "there is no")
        healed()
        os.rename(f"{kubelet_dir}-away", kubelet_dir)
        kubelet.faults.keep_sockets = True
        async with kubelet:
            await listed(kubelet, 1)
            assert left not in sockets(kubelet_dir)


async def test_the_old_server_stops_before_the_new_one_registers(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    """A kubelet that mixes up two plugins of one name (1.25 to 1.36) never meets two, and keeps the new one."""
    device_directory.add(0, 1)
    async with Kubelet(kubelet_dir, behaviour=Behaviour.BUGGY) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 2)
        for _ in range(5):
            count = len(kubelet.registrations)
            os.unlink(os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint))
            await kubelet.wait_for(lambda k, count=count: len(k.registrations) > count)  # type: ignore[misc]
            await listed(kubelet, 2)
        assert kubelet.resource(RESOURCE).streams == 1
        assert len(kubelet.registrations) == 6


async def test_the_old_server_answers_no_more(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """A connection to the socket of an earlier registration is of no use once there is a new one."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 1)
        path = os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint)
        async with grpc.aio.insecure_channel(f"unix:{path}") as old:
            await DevicePluginStub(old).GetDevicePluginOptions(pb.Empty())
            os.unlink(path)
            await kubelet.wait_for(lambda k: len(k.registrations) == 2)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await DevicePluginStub(old).GetDevicePluginOptions(pb.Empty())
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_events_alone_heal(
    device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where inotify works, nothing waits for the next look by the clock."""
    monkeypatch.setattr("aosp_plugin.framework.events.file_events.POLL_INTERVAL", 3600.0)
    monkeypatch.setattr("aosp_plugin.framework.events.file_events.SAFETY_INTERVAL", 3600.0)
    async with running(device_directory, kubelet_dir) as plugin:
        await problem(plugin, "there is no")
        healed()
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 0)
            device_directory.add(0)
            await listed(kubelet, 1)
            os.unlink(os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint))
            await kubelet.wait_for(lambda k: len(k.registrations) == 2)
            await kubelet.restart()
            await listed(kubelet, 1)


async def test_polling_alone_heals(
    device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where inotify can't be had, device_directory are found and a kubelet is met all the same."""
    monkeypatch.setattr("aosp_plugin.framework.events.file_events.POLL_INTERVAL", 0.05)
    monkeypatch.setattr("aosp_plugin.framework.events.file_events.FileEvents.inotify", lambda _: None)
    async with running(device_directory, kubelet_dir) as plugin:
        await problem(plugin, "there is no")
        healed()
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 0)
            device_directory.add(0)
            await listed(kubelet, 1)
            os.unlink(os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint))
            await kubelet.wait_for(lambda k: len(k.registrations) == 2)
            await listed(kubelet, 1)


async def test_a_refusal_that_can_not_heal(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """A name that the kubelet will never take ends the plugin with an error that says so."""
    async with Kubelet(kubelet_dir):
        plugin = make_plugin(device_directory, kubelet_dir, resource="no-domain")
        with pytest.raises(RegistrationRefusedError, match='the ResourceName "no-domain" is invalid'):
            await plugin.run()
    assert sockets(kubelet_dir) == []


async def test_a_version_that_the_kubelet_does_not_know(
    device_directory: DeviceDirectory, kubelet_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet without v1beta1 ends the plugin with an error that says so."""
    monkeypatch.setattr("aosp_plugin.framework.deviceplugin.supervisor.VERSION", "v1alpha1")
    async with Kubelet(kubelet_dir):
        with pytest.raises(RegistrationRefusedError, match='"v1alpha1" is not supported by kubelet'):
            await make_plugin(device_directory, kubelet_dir).run()


async def test_a_missing_directory(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """A kubelet directory that does not exist at the start is an error at once, with its name."""
    with pytest.raises(KubeletDirectoryError, match=f"{kubelet_dir}/nowhere does not exist"):
        await make_plugin(device_directory, f"{kubelet_dir}/nowhere").run()


async def test_serving_fails_for_a_while(
    device_directory: DeviceDirectory, kubelet_dir: str, healed: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that can't be bound is tried again under another name."""
    device_directory.add(0)
    real = PluginDirectory.next_endpoint
    fails = [True]

    def next_endpoint(directory: PluginDirectory, now: float) -> str:
        return "nowhere/a.sock" if fails[0] else real(directory, now)

    monkeypatch.setattr(PluginDirectory, "next_endpoint", next_endpoint)
    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir) as plugin:
        await problem(plugin, "cannot listen on")
        healed()
        fails[0] = False
        await listed(kubelet, 1)


async def test_a_killed_predecessors_socket_is_swept(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """At the start the sockets of a killed predecessor go, and those of others stay."""
    for name in ("aosp-aosp.io_binder-1-1.sock", "aosp-aosp.io_binderx-1-1.sock", "other.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(os.path.join(kubelet_dir, name))
    async with running(device_directory, kubelet_dir) as plugin:
        await problem(plugin, "there is no")
        assert sorted(os.listdir(kubelet_dir)) == ["aosp-aosp.io_binderx-1-1.sock", "other.sock"]


async def test_a_problem_is_logged_when_it_changes(
    device_directory: DeviceDirectory, kubelet_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A kubelet that goes on refusing is logged once, not at every try."""
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse_register = "not today"
        async with running(device_directory, kubelet_dir):
            await kubelet.wait_for(lambda k: len(k.registrations) >= 4)
        assert len([record for record in caplog.records if "not today" in vars(record).get("error", "")]) == 1


async def test_nothing_is_left_behind(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """A plugin that has ended leaves no thread and no open file, whatever it went through."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet:
        async with running(device_directory, kubelet_dir):  # gRPC starts what it keeps for good with its first server
            await listed(kubelet, 1)
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).streams == 0)
        before = threads_and_files()
        async with running(device_directory, kubelet_dir):
            await listed(kubelet, 1)
            os.unlink(os.path.join(kubelet_dir, kubelet.registrations[-1].endpoint))
            await kubelet.wait_for(lambda k: len(k.registrations) == 3)
            await listed(kubelet, 1)
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).streams == 0)
        assert threads_and_files() == before


def threads_and_files() -> tuple[list[str], int]:
    """Return the names of this process's Python threads, and how many inotify and pipe descriptors it has."""
    links = [f"/proc/self/fd/{descriptor}" for descriptor in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    threads = sorted(thread.name for thread in threading.enumerate() if thread.name in {"mounts", "look"})
    return threads, sum(target.startswith(("pipe:", "anon_inode:inotify")) for target in targets)


async def test_stop_while_register_hangs(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """A plugin that is told to stop does not wait for a kubelet that hangs in Register."""
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.hang_register = True
        async with running(device_directory, kubelet_dir, timings=IN_LIFE._replace(register=60)):
            await kubelet.wait_for(lambda k: len(k.registrations) == 1)
        assert sockets(kubelet_dir) == []
