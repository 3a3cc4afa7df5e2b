"""Recovery of the registration from everything that can fail between a kubelet and the plugin."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import grpc
import pytest

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.errors import RegistrationRefusedError
from kubelet_standin import Behaviour, Kubelet
from tests.support import (
    FAST,
    IN_LIFE,
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
    from collections.abc import Awaitable, Callable


LONG_PAUSES = IN_LIFE._replace(first_pause=3600.0, longest_pause=3600.0)
"""The pause after the second failure in a row is longer than any test."""


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


@pytest.mark.parametrize("damage", [restart, remove_socket, replace_socket, drop_streams])
async def test_plugin_registers_again_over_a_new_socket(
    device_directory: DeviceDirectory,
    kubelet_dir: str,
    damage: Callable[[Kubelet], Awaitable[None]],
) -> None:
    """All devices return, and the old server no longer answers."""
    device_directory.add(*range(5))
    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 5)
        path = plugin_socket(kubelet)
        async with grpc.aio.insecure_channel(f"unix:{path}") as old:
            await DevicePluginStub(old).GetDevicePluginOptions(pb.Empty())
            await damage(kubelet)
            await kubelet.wait_for(lambda k: plugin_socket(k) != path)
            await listed(kubelet, 5)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await DevicePluginStub(old).GetDevicePluginOptions(pb.Empty())
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


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


async def test_kubelet_restart_ends_the_pause(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """The plugin registers at once, however long the pause after failures is."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse_register = "not today"
        async with running(device_directory, kubelet_dir, timings=LONG_PAUSES):
            await kubelet.wait_for(lambda k: len(k.registrations) == 2)
            kubelet.faults.refuse_register = None
            await kubelet.restart()
            await listed(kubelet, 1)


async def test_missing_kubelet_socket_ends_no_registration(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """The stream shows that the kubelet is there."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir) as plugin:
        await listed(kubelet, 1)
        await ready(plugin)
        endpoint = plugin.endpoint
        os.unlink(f"{kubelet_dir}/kubelet.sock")
        device_directory.add(1)
        await listed(kubelet, 2)
        assert (plugin.endpoint, kubelet.resource(RESOURCE).streams_opened) == (endpoint, 1)


async def test_old_server_stops_before_the_new_one_registers(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    """Kubelets from 1.25 to 1.36 confuse two plugins of the same resource, and must never see both."""
    device_directory.add(0, 1)
    async with Kubelet(kubelet_dir, behaviour=Behaviour.BUGGY) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 2)
        for _ in range(5):
            count = len(kubelet.registrations)
            os.unlink(plugin_socket(kubelet))
            await kubelet.wait_for(lambda k, count=count: len(k.registrations) > count)  # type: ignore[misc]
            await listed(kubelet, 2)
        assert kubelet.resource(RESOURCE).streams == 1
        assert len(kubelet.registrations) == 6


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


@pytest.mark.parametrize(
    ("resource", "version", "error"),
    [
        ("no-domain", "v1beta1", 'the ResourceName "no-domain" is invalid'),
        (RESOURCE, "v1alpha1", '"v1alpha1" is not supported by kubelet'),
    ],
)
async def test_permanent_refusal_ends_the_plugin(
    device_directory: DeviceDirectory,
    kubelet_dir: str,
    monkeypatch: pytest.MonkeyPatch,
    resource: str,
    version: str,
    error: str,
) -> None:
    monkeypatch.setattr("aosp_plugin.framework.deviceplugin.supervisor.VERSION", version)
    async with Kubelet(kubelet_dir):
        with pytest.raises(RegistrationRefusedError, match=error):
            await make_plugin(device_directory, kubelet_dir, resource=resource).run()
    assert sockets(kubelet_dir) == []
