"""What a kubelet does with a plugin, tried on the real one and on ``aosp_plugin.testing.Kubelet`` alike.

The stand-in's tests rest on it; these hold it against the kubelet that it stands for. Each scenario is written once,
against :class:`DeviceManager`, and has a resource of its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from tests.e2e.kubelet.probe import HEALTHY, UNHEALTHY, Probe, healthy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PATIENCE = 30.0
LARGEST = 4 * 1024 * 1024
"""Bytes that the kubelet takes in a message."""
RESOURCE = "scenario.test/{}"


class Refused(NamedTuple):
    """A pod that may not run, in the kubelet's words."""

    reason: str
    message: str


class Given(NamedTuple):
    """A pod that runs."""

    pod: str
    devices: frozenset[str]
    environment: dict[str, str]


class DeviceManager(Protocol):
    """A kubelet, view from where a plugin and a pod stand."""

    @property
    def directory(self) -> str:
        """The directory of kubelet.sock."""

    async def counts(self, resource: str) -> tuple[int, int] | None:
        """Return capacity and allocatable of the node's status; None for a resource that it does not have."""

    async def admit(self, resource: str, count: int) -> Given | Refused:
        """Have a pod that asks for so many."""

    async def held(self, pod: str, resource: str) -> frozenset[str]:
        """Return what a pod has."""

    async def restart(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Restart the kubelet, and do something while it is down."""


class Scenario(NamedTuple):
    """A claim, and what raises where it does not hold."""

    title: str
    name: str
    check: Callable[[DeviceManager], Awaitable[None]]


ALL: list[Scenario] = []


def scenario(title: str) -> Callable[[Callable[[DeviceManager, str], Awaitable[None]]], None]:
    """Add the decorated function; it is called with a resource of its own."""

    def add(check: Callable[[DeviceManager, str], Awaitable[None]]) -> None:
        name = check.__name__
        resource = RESOURCE.format(name.replace("_", "-"))
        ALL.append(Scenario(title, name, lambda kubelet: check(kubelet, resource)))

    return add


async def _counts(kubelet: DeviceManager, resource: str, expected: tuple[int, int] | None) -> None:
    """Wait until the node's status has these counts."""
    end = time.monotonic() + PATIENCE
    while (found := await kubelet.counts(resource)) != expected:
        assert time.monotonic() < end, f"capacity and allocatable are {found}, not {expected}"
        await asyncio.sleep(0.1)


async def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:.0f} s"
        await asyncio.sleep(0.05)


def _entries(kubelet: DeviceManager) -> list[str]:
    return os.listdir(kubelet.directory)


def _refusal(error: str) -> Refused:
    return Refused("UnexpectedAdmissionError", f"Pod was rejected: Allocate failed due to {error}, which is unexpected")


async def _refused(kubelet: DeviceManager, resource: str, count: int, error: str) -> None:
    answer = await kubelet.admit(resource, count)
    assert answer == _refusal(error), f"{answer}"


async def _given(kubelet: DeviceManager, resource: str, count: int) -> Given:
    answer = await kubelet.admit(resource, count)
    assert isinstance(answer, Given), f"{answer}"
    return answer


@scenario("Register is answered after the plugin was asked for its options; one ListAndWatch follows, and no more")
async def order(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))
        assert plugin.calls[0] == "GetDevicePluginOptions", f"{plugin.calls}"
        assert sorted(plugin.calls) == ["GetDevicePluginOptions", "ListAndWatch", "registered"], f"{plugin.calls}"


@scenario("A plugin that fails to tell its options is refused; ListAndWatch is never called")
async def options_fail(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        plugin.options_error = "no options today"
        error = await plugin.register()
        expected = "failed to get device plugin options: rpc error: code = Internal desc = no options today"
        assert error == f"UNKNOWN: {expected}", error
        await asyncio.sleep(1)
        assert "ListAndWatch" not in plugin.calls, f"{plugin.calls}"
        assert await kubelet.counts(resource) is None, "the node's status has it"


@scenario("A plugin that nobody can dial is refused after 10 s")
async def undialled(kubelet: DeviceManager, resource: str) -> None:
    plugin = Probe(kubelet.directory, resource, socket="nobody.sock")
    started = time.monotonic()
    error = await plugin.register()
    assert error == "UNKNOWN: failed to dial device plugin: context deadline exceeded", error
    assert 9 < time.monotonic() - started < 15, f"{time.monotonic() - started:.1f} s"


@scenario("A wrong version and a wrong name are refused, in these words")
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


@scenario("Health flips: 4 of 4, 3 of 4, 2 of 4, and back; whatever is not exactly Healthy is ill")
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


@scenario("Each message replaces the whole list")
async def replaced(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 3))
        plugin.send(healthy("d"))
        await _counts(kubelet, resource, (1, 1))
        assert (await _given(kubelet, resource, 1)).devices == {"d"}


@scenario("A device that is listed twice counts once")
async def duplicates(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "b")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))


@scenario("A device that is listed twice, as Healthy and as Unhealthy, counts as both, whichever comes last")
async def contradiction(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, [("a", HEALTHY), ("b", UNHEALTHY), ("b", HEALTHY)]) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 2))
        plugin.send([("a", UNHEALTHY), ("b", HEALTHY), ("b", UNHEALTHY)])
        await _counts(kubelet, resource, (3, 1))
        assert (await _given(kubelet, resource, 1)).devices == {"b"}


@scenario("A plugin with no devices: 0 of 0, and a pod is refused")
async def no_devices(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (0, 0))
        error = f"no healthy devices present; cannot allocate unhealthy devices {resource}"
        await _refused(kubelet, resource, 1, error)


@scenario("A pod that asks for too many is refused, and nothing is taken")
async def too_many(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 3))
        await _given(kubelet, resource, 1)
        error = f"requested number of devices unavailable for {resource}. Requested: 3, Available: 2"
        await _refused(kubelet, resource, 3, error)
        assert len((await _given(kubelet, resource, 2)).devices) == 2


@scenario("Allocate is called with what the pod then has, and its answer reaches the container")
async def allocate(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 3))
        given = await _given(kubelet, resource, 2)
        assert [set(one) for one in plugin.asked] == [given.devices], f"{plugin.asked}"
        assert given.environment.get("GIVEN") == ",".join(sorted(given.devices)), f"{given}"


@scenario("An Allocate that fails refuses the pod with the plugin's own words, and the devices stay free")
async def allocate_fails(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (1, 1))
        plugin.allocate_error = "a is ill"
        await _refused(kubelet, resource, 1, "rpc error: code = FailedPrecondition desc = a is ill")
        plugin.allocate_error = ""
        assert (await _given(kubelet, resource, 1)).devices == {"a"}


@scenario("An Allocate that is answered with nothing refuses the pod")
async def allocate_empty(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (1, 1))
        plugin.empty_answer = True
        answer = await kubelet.admit(resource, 1)
        assert isinstance(answer, Refused), f"{answer}"
        assert "no containers return in allocation response" in answer.message, f"{answer}"


@scenario("The preferred devices are taken; the plugin is told all that are free")
async def preferred(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c", "d")) as plugin:
        plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
        plugin.prefer = ["c", "b"]
        assert not await plugin.register()
        await _counts(kubelet, resource, (4, 4))
        assert (await _given(kubelet, resource, 2)).devices == {"b", "c"}
        request = plugin.preferred[0]
        assert sorted(request.available_deviceIDs) == ["a", "b", "c", "d"], f"{request}"
        assert (list(request.must_include_deviceIDs), request.allocation_size) == ([], 2), f"{request}"


@scenario("A preference for devices that are not free is ignored")
async def bogus_preference(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b")) as plugin:
        plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
        plugin.prefer = ["nothing", "known"]
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))
        assert (await _given(kubelet, resource, 2)).devices == {"a", "b"}


@scenario("PreStartContainer is called with the container's devices before it starts")
async def pre_start(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b")) as plugin:
        plugin.options = pb.DevicePluginOptions(pre_start_required=True)
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))
        await _given(kubelet, resource, 2)
        assert plugin.calls[-2:] == ["Allocate", "PreStartContainer a,b"], f"{plugin.calls}"


@scenario("After a restart of the kubelet a pod has the same devices, and the plugin is not asked again")
async def kubelet_restarts(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 3))
        given = await _given(kubelet, resource, 2)
        await kubelet.restart()
        assert plugin.socket not in _entries(kubelet), "the socket is there still"
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c"), socket="probe-2.sock") as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 3))
        assert await kubelet.held(given.pod, resource) == given.devices
        assert not plugin.asked, f"{plugin.asked}"
        error = f"requested number of devices unavailable for {resource}. Requested: 2, Available: 1"
        await _refused(kubelet, resource, 2, error)


@scenario("A kubelet that starts removes sockets, and leaves files and directories")
async def sweep(kubelet: DeviceManager, _resource: str) -> None:
    paths = {name: os.path.join(kubelet.directory, f"swept-{name}") for name in ("socket", "file", "directory")}
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(paths["socket"])
    with open(paths["file"], "w", encoding="ascii"):  # noqa: ASYNC230 - an empty file
        pass
    os.mkdir(paths["directory"])
    await kubelet.restart()
    left = {name for name in paths if f"swept-{name}" in _entries(kubelet)}
    os.unlink(paths["file"])
    os.rmdir(paths["directory"])
    assert left == {"file", "directory"}, f"left: {left}"


@scenario("A kubelet that restarts knows the resource from its checkpoint: 0 of 0 until the plugin is back")
async def restart_without(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (1, 1))
        await kubelet.restart()
        await _counts(kubelet, resource, (0, 0))
        error = f"no healthy devices present; cannot allocate unhealthy devices {resource}"
        await _refused(kubelet, resource, 1, error)


@scenario("A checkpoint that can't be read is as good as none")
async def bad_checkpoint(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (1, 1))
        path = Path(kubelet.directory, "kubelet_internal_checkpoint")
        await kubelet.restart(lambda: path.write_text("{"))
        await _counts(kubelet, resource, None)


@scenario("A plugin that comes back with other devices: the old ones are gone")
async def other_devices(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b", "c")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (3, 3))
    await _counts(kubelet, resource, (3, 0))
    async with Probe(kubelet.directory, resource, healthy("b", "d"), socket="other.sock") as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))
        assert (await _given(kubelet, resource, 2)).devices == {"b", "d"}


@scenario("A stream that ends leaves the capacity and nothing to allocate; ListAndWatch is not tried again")
async def stream_ends(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a", "b")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))
        plugin.end_streams()
        await _counts(kubelet, resource, (2, 0))
        await asyncio.sleep(2)
        assert plugin.calls.count("ListAndWatch") == 1, f"{plugin.calls}"
        error = f"no healthy devices present; cannot allocate unhealthy devices {resource}"
        await _refused(kubelet, resource, 1, error)
        assert not await plugin.register()
        await _counts(kubelet, resource, (2, 2))


@scenario("A message of 4 MiB is taken, one of a byte more ends the stream")
async def large_message(kubelet: DeviceManager, resource: str) -> None:
    async with Probe(kubelet.directory, resource, healthy("a")) as plugin:
        assert not await plugin.register()
        await _counts(kubelet, resource, (1, 1))
        plugin.send(_list_of(LARGEST))
        count = len(_list_of(LARGEST))
        await _counts(kubelet, resource, (count, count))
        plugin.send(_list_of(LARGEST + 1))
        await _counts(kubelet, resource, (count, 0))
        await _until(lambda: plugin.streams == 0, "the plugin sees its stream end")


def _list_of(size: int) -> list[tuple[str, str]]:
    """Return devices whose message has exactly so many bytes: long names, so that they are few."""
    name, frame = (
        1000,
        len(pb.ListAndWatchResponse(devices=[pb.Device(ID="x" * 1000, health=HEALTHY)]).SerializeToString()),
    )
    count = size // frame
    devices = [(f"{number:0{name}}", HEALTHY) for number in range(count)]
    rest = size - count * frame
    if rest:
        devices[-1] = (f"{count - 1:0{name + rest}}", HEALTHY)
    message = pb.ListAndWatchResponse(devices=[pb.Device(ID=one, health=how) for one, how in devices])
    assert message.ByteSize() == size, f"{message.ByteSize()} is not {size}"
    return devices


@scenario("Two plugins of one resource: when the first one's stream ends, the second one is dropped with it")
async def takeover(kubelet: DeviceManager, resource: str) -> None:
    async with (
        Probe(kubelet.directory, resource, healthy("a"), socket="first.sock") as first,
        Probe(kubelet.directory, resource, healthy("a", "b"), socket="second.sock") as second,
    ):
        assert not await first.register()
        await _counts(kubelet, resource, (1, 1))
        assert not await second.register()
        await _counts(kubelet, resource, (2, 2))
        assert (first.streams, second.streams) == (1, 1), f"{first.streams} {second.streams}"
        first.end_streams()
        await _counts(kubelet, resource, (2, 0))
        await _until(lambda: second.streams == 0, "the second one sees its stream end")
