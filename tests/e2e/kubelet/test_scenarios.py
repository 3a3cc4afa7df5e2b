"""Scenarios for the kubelet's device manager, which run on the real kubelet and on ``kubelet_standin.Kubelet``.

Most tests rely on the stand-in; these compare it with the real kubelet. Each scenario has a resource of its own.
``tests/tools/test_kubelet_scenarios.py`` runs them with the stand-in of each generation.
"""

import asyncio
import contextlib
import os
import re
import socket
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.tests.stub import fail, healthy
from tests.e2e.common.waiting import PATIENCE, eventually
from tests.e2e.kubelet.managers import Admitted, DeviceManager, Rejected, restart
from tests.e2e.kubelet.probe import Probe
from tests.e2e.kubelet.versions import KEEPS_DEVICES, LOSES_DEVICES, rejections

LARGEST = 4 * 1024 * 1024
"""The largest message that the kubelet accepts, in bytes."""


@contextlib.asynccontextmanager
async def _registered(
    kubelet: DeviceManager, *ids: str, socket: str = "", prefer: tuple[str, ...] = (), pre_start: bool = False
) -> AsyncIterator[Probe]:
    """Serve and register a plugin with healthy devices, which the node's status has then."""
    async with Probe(kubelet.directory, kubelet.resource, healthy(*ids), socket=socket) as plugin:
        plugin.preferred = list(prefer)
        plugin.options = pb.DevicePluginOptions(
            get_preferred_allocation_available=bool(prefer), pre_start_required=pre_start
        )
        assert not await plugin.register()
        await _counts(kubelet, len(ids), len(ids))
        yield plugin


async def _counts(kubelet: DeviceManager, *expected: int) -> None:
    """Wait until the node's status has this capacity and allocatable."""
    end = time.monotonic() + PATIENCE
    while (counts := await kubelet.counts(kubelet.resource)) != expected:
        assert time.monotonic() < end, f"capacity and allocatable are {counts}, not {expected}"
        await asyncio.sleep(0.1)


async def _streams(plugin: Probe, count: int) -> None:
    await eventually(lambda: plugin.open_streams == count, f"{plugin.name} has {count} streams")


async def _rejected(kubelet: DeviceManager, count: int, error: str) -> None:
    assert await kubelet.admit(count) in _rejections(error)


def _rejections(error: str) -> list[Rejected]:
    return [Rejected("UnexpectedAdmissionError", text) for text in rejections(error)]


async def _admitted(kubelet: DeviceManager, count: int) -> Admitted:
    answer = await kubelet.admit(count)
    assert isinstance(answer, Admitted)
    return answer


async def test_order(kubelet: DeviceManager) -> None:
    """The kubelet calls GetDevicePluginOptions before it answers Register, and then ListAndWatch once."""
    async with _registered(kubelet, "a", "b") as plugin:
        assert plugin.calls[0] == "GetDevicePluginOptions"
        assert sorted(plugin.calls) == ["GetDevicePluginOptions", "ListAndWatch", "registered"]


async def test_refusals(kubelet: DeviceManager) -> None:
    """A wrong API version and an invalid resource name are refused, with these messages."""
    async with Probe(kubelet.directory, kubelet.resource) as plugin:
        assert await plugin.register(version="v1alpha1") == (
            'UNKNOWN: requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]'
        )
        plugin.resource = "nodomain"
        assert await plugin.register() == 'UNKNOWN: the ResourceName "nodomain" is invalid'
        assert not plugin.calls


async def test_flips(kubelet: DeviceManager) -> None:
    """Allocatable follows health: 4 of 4, 3 of 4, 2 of 4, and back; any value but exactly Healthy is unhealthy."""
    ids = ("a", "b", "c", "d")
    async with _registered(kubelet, *ids) as plugin:
        plugin.send([pb.Device(ID="a", health="Unhealthy"), *healthy("b", "c", "d")])
        await _counts(kubelet, 4, 3)
        plugin.send([pb.Device(ID="a", health="healthy"), pb.Device(ID="b"), *healthy("c", "d")])
        await _counts(kubelet, 4, 2)
        plugin.send(healthy(*ids))
        await _counts(kubelet, 4, 4)


async def test_allocate(kubelet: DeviceManager) -> None:
    """Allocate is called with the pod's devices, and its answer reaches the container."""
    async with _registered(kubelet, "a", "b", "c") as plugin:
        admitted = await _admitted(kubelet, 2)
        assert [set(devices) for devices in plugin.allocated] == [admitted.devices]
        assert set(admitted.environment["DEVICES"].split(",")) == admitted.devices


async def test_allocate_fails(kubelet: DeviceManager) -> None:
    """A pod whose Allocate fails is rejected with the plugin's message, and the devices stay free."""
    async with _registered(kubelet, "a") as plugin:
        plugin.hooks["Allocate"] = fail("a is unhealthy", grpc.StatusCode.FAILED_PRECONDITION)
        await _rejected(kubelet, 1, "rpc error: code = FailedPrecondition desc = a is unhealthy")
        plugin.hooks.clear()
        assert (await _admitted(kubelet, 1)).devices == {"a"}


async def test_preferred(kubelet: DeviceManager) -> None:
    """The preferred devices are allocated; GetPreferredAllocation gets all free devices."""
    async with _registered(kubelet, "a", "b", "c", "d", prefer=("c", "b")) as plugin:
        assert (await _admitted(kubelet, 2)).devices == {"b", "c"}
        (request,) = plugin.preference_requests
        assert sorted(request.available_deviceIDs) == ["a", "b", "c", "d"]
        assert (list(request.must_include_deviceIDs), request.allocation_size) == ([], 2)


async def test_pre_start(kubelet: DeviceManager) -> None:
    """PreStartContainer is called with the container's devices before the container starts."""
    async with _registered(kubelet, "a", "b", pre_start=True) as plugin:
        await _admitted(kubelet, 2)
        assert plugin.calls[-2:] == ["Allocate", "PreStartContainer"]
        assert [set(devices) for devices in plugin.pre_started] == [{"a", "b"}]


async def test_kubelet_restarts(kubelet: DeviceManager) -> None:
    """After a restart of the kubelet a pod has the same devices, without another Allocate."""
    async with _registered(kubelet, "a", "b", "c") as plugin:
        admitted = await _admitted(kubelet, 2)
        await restart(kubelet)
        assert plugin.name not in os.listdir(kubelet.directory)
    async with _registered(kubelet, "a", "b", "c", socket="probe-2.sock") as plugin:
        assert await kubelet.held(admitted.pod) == admitted.devices
        assert not plugin.allocated
        error = f"requested number of devices unavailable for {kubelet.resource}. Requested: 2, Available: 1"
        await _rejected(kubelet, 2, error)


async def test_ended_plugin(kubelet: DeviceManager) -> None:
    """The plugin has ended: a container does not start again, because PreStartContainer cannot be called."""
    async with _registered(kubelet, "a", pre_start=True) as plugin:
        pod = (await _admitted(kubelet, 1)).pod
        assert plugin.pre_started == [["a"]]
        plugin.end_stream()
        await _counts(kubelet, 1, 0)
        assert re.fullmatch(
            r"device plugin PreStartContainer rpc failed with err: endpoint &\{.*\} has been stopped",
            await kubelet.start_again(pod),
        )


async def test_forgotten_options(kubelet: DeviceManager) -> None:
    """The kubelet has restarted: a container starts again without PreStartContainer until the plugin registers."""
    async with _registered(kubelet, "a", pre_start=True) as plugin:
        pod = (await _admitted(kubelet, 1)).pod
        assert plugin.pre_started == [["a"]]
        await restart(kubelet)
        before = list(plugin.calls)
        assert await kubelet.start_again(pod) == ""
        assert plugin.calls == before
    async with _registered(kubelet, "a", socket="probe-2.sock", pre_start=True) as plugin:
        assert await kubelet.start_again(pod) == ""
        assert plugin.pre_started == [["a"]]


async def test_readmission(kubelet: DeviceManager) -> None:
    """The kubelet has restarted, and the plugin has not registered: a pod whose container never ran is rejected."""
    async with _registered(kubelet, "a", pre_start=True):
        pod = await kubelet.admit_waiting(1)
        await restart(kubelet)
        error = f"no healthy devices present; cannot allocate unhealthy devices {kubelet.resource}"
        assert await kubelet.rejection(pod) in _rejections(error)


async def test_sweep(kubelet: DeviceManager) -> None:
    """A kubelet that starts removes sockets, and before 1.33 files (not 1.31.0), but not directories."""
    paths = {name: os.path.join(kubelet.directory, f"swept-{name}") for name in ("socket", "file", "directory")}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(paths["socket"])
    with open(paths["file"], "w", encoding="ascii"):  # noqa: ASYNC230 - an empty file
        pass
    os.mkdir(paths["directory"])
    await restart(kubelet)
    remaining = {name for name in paths if f"swept-{name}" in os.listdir(kubelet.directory)}
    Path(paths["file"]).unlink(missing_ok=True)
    os.rmdir(paths["directory"])
    expected = {"directory"} if kubelet.version.sweeps(stat.S_IFREG) else {"file", "directory"}
    assert remaining == expected


async def test_stream_ends(kubelet: DeviceManager) -> None:
    """When the stream ends, capacity stays and allocatable is 0; the kubelet does not call ListAndWatch again."""
    async with _registered(kubelet, "a", "b") as plugin:
        plugin.end_stream()
        await _counts(kubelet, 2, 0)
        await asyncio.sleep(2)
        assert plugin.calls.count("ListAndWatch") == 1
        error = f"no healthy devices present; cannot allocate unhealthy devices {kubelet.resource}"
        await _rejected(kubelet, 1, error)
        assert not await plugin.register()
        await _counts(kubelet, 2, 2)


async def test_large_message(kubelet: DeviceManager) -> None:
    """A message of 4 MiB is accepted; one more byte ends the stream."""
    async with _registered(kubelet, "a") as plugin:
        plugin.send(_list_of(LARGEST))
        count = len(_list_of(LARGEST))
        await _counts(kubelet, count, count)
        plugin.send(_list_of(LARGEST + 1))
        await _counts(kubelet, count, 0)
        await _streams(plugin, 0)


def _list_of(size: int) -> list[pb.Device]:
    """Return devices whose message has exactly ``size`` bytes, with long names to need few of them."""
    length = 1000
    count, rest = divmod(size, pb.ListAndWatchResponse(devices=healthy("x" * length)).ByteSize())
    names = [f"{number:0{length}}" for number in range(count - 1)]
    devices = healthy(*names, f"{count - 1:0{length + rest}}")
    assert pb.ListAndWatchResponse(devices=devices).ByteSize() == size
    return devices


@pytest.mark.requires(KEEPS_DEVICES)
async def test_survivor(kubelet: DeviceManager) -> None:
    """Two plugins of one resource: when one of them ends, the kubelet uses the other one."""
    async with (
        _registered(kubelet, "a", "b", socket="first.sock") as first,
        _registered(kubelet, "a", "b", socket="second.sock") as second,
    ):
        await _streams(first, 1)
        await _streams(second, 1)
        for ends, stays in ((second, first), (first, second)):
            ends.end_stream()
            await _streams(ends, 0)
            await _counts(kubelet, 2, 2)
            admitted = await _admitted(kubelet, 1)
            assert [set(devices) for devices in stays.allocated] == [admitted.devices]
            assert not await ends.register()
            await _streams(ends, 1)


@pytest.mark.requires(LOSES_DEVICES)
async def test_second_leaves(kubelet: DeviceManager) -> None:
    """Two plugins of one resource: when the second one ends, the first one keeps a stream, but no healthy device."""
    async with (
        _registered(kubelet, "a", "b", socket="first.sock") as first,
        _registered(kubelet, "a", "b", socket="second.sock") as second,
    ):
        await _streams(first, 1)
        await _streams(second, 1)
        await second.server.stop(None)
        await _counts(kubelet, 2, 0)
        assert first.open_streams == 1
        first.send(healthy("a", "b", "c"))
        await _counts(kubelet, 3, 3)
        answer = await kubelet.admit(1)
        assert isinstance(answer, Rejected)
        assert "has been stopped" in answer.message
        assert not await first.register()
        await _admitted(kubelet, 1)
