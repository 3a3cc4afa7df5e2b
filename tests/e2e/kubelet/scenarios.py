"""Scenarios for the kubelet's device manager, which run on the real kubelet and on ``kubelet_standin.Kubelet``.

Most tests rely on the stand-in; these compare it with the real kubelet. Each scenario is written once, for a
``DeviceManager``, and has a resource of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from tests.e2e.kubelet.probe import HEALTHY, UNHEALTHY, Probe, healthy
from tests.e2e.kubelet.versions import ANY, KEEPS_DEVICES, LOSES_DEVICES, rejections
from tests.e2e.kubelet.waiting import PATIENCE
from tests.simulation import traces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.e2e.kubelet.managers import Real, StandIn
    from tests.e2e.kubelet.versions import Condition

    DeviceManager: TypeAlias = StandIn | Real
    """A kubelet as plugins and pods use it."""

LARGEST = 4 * 1024 * 1024
"""The largest message that the kubelet accepts, in bytes."""
RESOURCE = "scenario.test/{}"
PRE_START_FAILED = r"device plugin PreStartContainer rpc failed with err: endpoint &\{.*\} has been stopped"


class Rejected(NamedTuple):
    """A rejected pod: the kubelet's reason and message."""

    reason: str
    message: str


class Admitted(NamedTuple):
    """A running pod."""

    pod: str
    devices: frozenset[str]
    environment: dict[str, str]


class Scenario(NamedTuple):
    """A claim and its check, which raises AssertionError if the claim is wrong."""

    title: str
    name: str
    check: Callable[[DeviceManager], Awaitable[None]]
    requires: Condition
    """The kubelets that it is about."""


ALL: list[Scenario] = []


def scenario(
    title: str, requires: Condition = ANY
) -> Callable[[Callable[[DeviceManager, str], Awaitable[None]]], None]:
    """Add the decorated function, which is called with a resource of its own."""

    def add(check: Callable[[DeviceManager, str], Awaitable[None]]) -> None:
        name = check.__name__
        resource = RESOURCE.format(name.replace("_", "-"))
        ALL.append(Scenario(title, name, lambda kubelet: check(kubelet, resource), requires))

    return add


async def restart(kubelet: DeviceManager) -> None:
    """Restart the kubelet."""
    await kubelet.stop()
    await kubelet.start()


async def _counts(kubelet: DeviceManager, resource: str, expected: tuple[int, int] | None) -> None:
    """Wait until the node's status has these counts."""
    end = time.monotonic() + PATIENCE
    while (counts := await kubelet.counts(resource)) != expected:
        assert time.monotonic() < end, f"capacity and allocatable are {counts}, not {expected}"
        await asyncio.sleep(0.1)


async def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:.0f} s"
        await asyncio.sleep(0.05)


def _entries(kubelet: DeviceManager) -> list[str]:
    return os.listdir(kubelet.directory)


async def _rejected(kubelet: DeviceManager, resource: str, count: int, error: str) -> None:
    answer = await kubelet.admit(resource, count)
    assert answer in [Rejected("UnexpectedAdmissionError", text) for text in rejections(error)], f"{answer}"


async def _admitted(kubelet: DeviceManager, resource: str, count: int) -> Admitted:
    answer = await kubelet.admit(resource, count)
    assert isinstance(answer, Admitted), f"{answer}"
    return answer


@scenario("The kubelet calls GetDevicePluginOptions before it answers Register, and then ListAndWatch once")
async def order(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))
        assert plugin.calls[0] == "GetDevicePluginOptions", f"{plugin.calls}"
        assert sorted(plugin.calls) == ["GetDevicePluginOptions", "ListAndWatch", "registered"], f"{plugin.calls}"


@scenario("A wrong API version and an invalid resource name are refused, with these messages")
async def refusals(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource) as plugin:
        error = await plugin.register(version="v1alpha1")
        assert error == (
            'UNKNOWN: requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]'
        ), error
        plugin.resource = "nodomain"
        error = await plugin.register()
        assert error == 'UNKNOWN: the ResourceName "nodomain" is invalid', error
        assert not plugin.calls, f"{plugin.calls}"


@scenario("Allocatable follows health: 4 of 4, 3 of 4, 2 of 4, and back; any value but exactly Healthy is unhealthy")
async def flips(kubelet: DeviceManager, resource: str) -> None:
    ids = ("a", "b", "c", "d")
    async with Probe(kubelet.directory, resource, healthy(*ids)) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (4, 4))
        plugin.send([("a", UNHEALTHY), *healthy("b", "c", "d")])
        await _counts(kubelet, resource, (4, 3))
        plugin.send([("a", "healthy"), ("b", ""), *healthy("c", "d")])
        await _counts(kubelet, resource, (4, 2))
        plugin.send(healthy(*ids))
        await _counts(kubelet, resource, (4, 4))


@scenario("Allocate is called with the pod's devices, and its answer reaches the container")
async def allocate(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 3))
        admitted = await _admitted(kubelet, resource, 2)
        assert [set(devices) for devices in plugin.allocated] == [admitted.devices], f"{plugin.allocated}"
        assert admitted.environment.get("DEVICES") == ",".join(sorted(admitted.devices)), f"{admitted}"


@scenario("A pod whose Allocate fails is rejected with the plugin's message, and the devices stay free")
async def allocate_fails(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (1, 1))
        plugin.allocate_error = "a is unhealthy"
        await _rejected(kubelet, resource, 1, "rpc error: code = FailedPrecondition desc = a is unhealthy")
        plugin.allocate_error = ""
        assert (await _admitted(kubelet, resource, 1)).devices == {"a"}


@scenario("The preferred devices are allocated; GetPreferredAllocation gets all free devices")
async def preferred(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c", "d")) as plugin:
        plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
        plugin.prefer = ["c", "b"]
        assert not await plugin.register()
        await _counts(kubelet, resource, (4, 4))
        assert (await _admitted(kubelet, resource, 2)).devices == {"b", "c"}
        request = plugin.preferred[0]
        assert sorted(request.available_deviceIDs) == ["a", "b", "c", "d"], f"{request}"
        assert (list(request.must_include_deviceIDs), request.allocation_size) == ([], 2), f"{request}"


@scenario("PreStartContainer is called with the container's devices before the container starts")
async def pre_start(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b")) as plugin:
        plugin.options = pb.DevicePluginOptions(pre_start_required=True)
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))
        await _admitted(kubelet, resource, 2)
        assert plugin.calls[-2:] == ["Allocate", "PreStartContainer a,b"], f"{plugin.calls}"


@scenario("After a restart of the kubelet a pod has the same devices, without another Allocate")
async def kubelet_restarts(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 3))
        admitted = await _admitted(kubelet, resource, 2)
        await restart(kubelet)
        assert plugin.socket not in _entries(kubelet), "the socket still exists"
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c"), socket="probe-2.sock") as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 3))
        assert await kubelet.held(admitted.pod, resource) == admitted.devices
        assert not plugin.allocated, f"{plugin.allocated}"
        error = f"requested number of devices unavailable for {resource}. Requested: 2, Available: 1"
        await _rejected(kubelet, resource, 2, error)


@scenario("The plugin has ended: a container does not start again, because PreStartContainer cannot be called")
async def ended_plugin(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        pod = await _with_pre_start(kubelet, resource, plugin)
        plugin.end_streams()
        await _counts(kubelet, resource, (1, 0))
        error = await kubelet.start_again(pod)
        assert re.fullmatch(PRE_START_FAILED, error), error


@scenario("The kubelet has restarted: a container starts again without PreStartContainer until the plugin registers")
async def forgotten_options(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        pod = await _with_pre_start(kubelet, resource, plugin)
        await restart(kubelet)
        before = list(plugin.calls)
        assert await kubelet.start_again(pod) == ""
        assert plugin.calls == before, f"{plugin.calls}"
    async with Probe(kubelet.directory, resource, healthy("a"), socket="probe-2.sock") as plugin:
        plugin.options = pb.DevicePluginOptions(pre_start_required=True)
        assert not await plugin.register()
        await _counts(kubelet, resource, (1, 1))
        assert await kubelet.start_again(pod) == ""
        assert plugin.calls[-1] == "PreStartContainer a", f"{plugin.calls}"


@scenario("The kubelet has restarted, and the plugin has not registered: a pod whose container never ran is rejected")
async def readmission(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        plugin.options = pb.DevicePluginOptions(pre_start_required=True)
        assert not await plugin.register()
        await _counts(kubelet, resource, (1, 1))
        pod = await kubelet.admit_waiting(resource, 1)
        await restart(kubelet)
        error = f"no healthy devices present; cannot allocate unhealthy devices {resource}"
        answer = await kubelet.rejection(pod)
        assert answer in [Rejected("UnexpectedAdmissionError", text) for text in rejections(error)], f"{answer}"


async def _with_pre_start(kubelet: DeviceManager, resource: str, plugin: Probe) -> str:
    """Register a plugin that requires PreStartContainer, and run a pod with its device; return the pod's name."""
    plugin.options = pb.DevicePluginOptions(pre_start_required=True)
    assert not await plugin.register()
    await _counts(kubelet, resource, (1, 1))
    pod = (await _admitted(kubelet, resource, 1)).pod
    assert plugin.calls[-1] == "PreStartContainer a", f"{plugin.calls}"
    return pod


@scenario("A kubelet that starts removes sockets, and before 1.33 files (not 1.31.0), but not directories")
async def sweep(kubelet: DeviceManager, _resource: str) -> None:
    paths = {name: os.path.join(kubelet.directory, f"swept-{name}") for name in ("socket", "file", "directory")}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(paths["socket"])
    with open(paths["file"], "w", encoding="ascii"):  # noqa: ASYNC230 - an empty file
        pass
    os.mkdir(paths["directory"])
    await restart(kubelet)
    remaining = {name for name in paths if f"swept-{name}" in _entries(kubelet)}
    Path(paths["file"]).unlink(missing_ok=True)
    os.rmdir(paths["directory"])
    expected = {"directory"} if kubelet.version.sweeps(stat.S_IFREG) else {"file", "directory"}
    assert remaining == expected, f"remaining: {remaining}"


@scenario("When the stream ends, capacity stays and allocatable is 0; the kubelet does not call ListAndWatch again")
async def stream_ends(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))
        plugin.end_streams()
        await _counts(kubelet, resource, (2, 0))
        await asyncio.sleep(2)
        assert plugin.calls.count("ListAndWatch") == 1, f"{plugin.calls}"
        error = f"no healthy devices present; cannot allocate unhealthy devices {resource}"
        await _rejected(kubelet, resource, 1, error)
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))


@scenario("A message of 4 MiB is accepted; one more byte ends the stream")
async def large_message(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (1, 1))
        plugin.send(_list_of(LARGEST))
        count = len(_list_of(LARGEST))
        await _counts(kubelet, resource, (count, count))
        plugin.send(_list_of(LARGEST + 1))
        await _counts(kubelet, resource, (count, 0))
        await _until(lambda: plugin.streams == 0, "the plugin's stream ends")


def _list_of(size: int) -> list[tuple[str, str]]:
    """Return devices whose message has exactly ``size`` bytes, with long names to need few of them."""
    name = 1000
    frame = pb.ListAndWatchResponse(devices=[pb.Device(ID="x" * name, health=HEALTHY)]).ByteSize()
    count = size // frame
    devices = [(f"{number:0{name}}", HEALTHY) for number in range(count)]
    rest = size - count * frame
    if rest:
        devices[-1] = (f"{count - 1:0{name + rest}}", HEALTHY)
    message = pb.ListAndWatchResponse(devices=[pb.Device(ID=device, health=health) for device, health in devices])
    assert message.ByteSize() == size, f"{message.ByteSize()} is not {size}"
    return devices


@scenario("Two plugins of one resource: when one of them ends, the kubelet uses the other one", KEEPS_DEVICES)
async def survivor(kubelet: DeviceManager, resource: str) -> None:
    async with (
        Probe(kubelet.directory, resource, healthy("a", "b"), socket="first.sock") as first,
        Probe(kubelet.directory, resource, healthy("a", "b"), socket="second.sock") as second,
    ):
        for plugin in (first, second):
            assert not await plugin.register()
            await _until(lambda plugin=plugin: plugin.streams == 1, "the kubelet watches the plugin")  # type: ignore[misc]
        for ends, stays in ((second, first), (first, second)):
            ends.end_streams()
            await _until(lambda ends=ends: ends.streams == 0, "the stream ends")  # type: ignore[misc]
            await _counts(kubelet, resource, (2, 2))
            admitted = await _admitted(kubelet, resource, 1)
            assert [set(devices) for devices in stays.allocated] == [admitted.devices], f"{stays.allocated}"
            assert not await ends.register()
            await _until(lambda ends=ends: ends.streams == 1, "the kubelet watches it again")  # type: ignore[misc]


@scenario(
    "Two plugins of one resource: when the second one ends, the first one keeps a stream, but no healthy device",
    LOSES_DEVICES,
)
async def second_leaves(kubelet: DeviceManager, resource: str) -> None:
    async with (
        Probe(kubelet.directory, resource, healthy("a", "b"), socket="first.sock") as first,
        Probe(kubelet.directory, resource, healthy("a", "b"), socket="second.sock") as second,
    ):
        assert not await first.register()
        await _counts(kubelet, resource, (2, 2))
        assert not await second.register()
        await _until(lambda: (first.streams, second.streams) == (1, 1), "both plugins have a stream")
        await second.stop()
        await _counts(kubelet, resource, (2, 0))
        assert first.streams == 1, "the stream of the first plugin has ended"
        first.send(healthy("a", "b", "c"))
        await _counts(kubelet, resource, (3, 3))
        answer = await kubelet.admit(resource, 1)
        assert isinstance(answer, Rejected), f"{answer}"
        assert "has been stopped" in answer.message, f"{answer}"
        assert not await first.register()
        await _admitted(kubelet, resource, 1)


@scenario("Step by step, it does to plugins what was recorded", LOSES_DEVICES)
async def trace(kubelet: DeviceManager, _resource: str) -> None:
    steps = await traces.kubelet_steps(kubelet, traces.DirectoryEvents(kubelet.directory).seen, pause=2.0)
    traces.show("kubelet", steps)
    different = traces.differences(steps, traces.recorded("kubelet"))
    assert not different, "; ".join(different)
