"""The comparison of the kubelet's devices with those that a plugin published, on real sockets."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.api import podresources_pb2 as pb
from aosp_plugin.framework.deviceplugin.plugin import KubeletView
from aosp_plugin.framework.podresources_client import Allocatable, PodResources
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Timings, background_task
from kubelet_standin import Kubelet
from tests.pod_resources import answering
from tests.support import IN_LIFE, PATIENCE, RESOURCE, DeviceDirectory, make_plugin, ready, run, unready, until

TIMINGS = Timings(
    view_interval=0.1,
    view_after_registration=0.05,
    recheck=0.05,
    view_settle=0.02,
    view_pause=0.5,
)


@pytest.fixture
def socket(kubelet_dir: str) -> str:
    """Return the path of the podresources socket."""
    return os.path.join(kubelet_dir, "pods.sock")


Viewing = Callable[..., contextlib.AbstractAsyncContextManager[DevicePlugin]]


async def confirmed(plugin: DevicePlugin, allocatable: int | None, unknown: str = "") -> None:
    """Wait until the kubelet's number of devices is known, or until it is unknown for this reason."""
    await until(lambda: plugin.confirmation.allocatable == allocatable and unknown in plugin.confirmation.unknown)


@pytest.fixture
def viewed(kubelet: Kubelet, socket: str, device_directory: DeviceDirectory) -> Viewing:
    """Return what runs a plugin with three devices, and the comparison as soon as the plugin is registered."""
    device_directory.add(0, 1, 2)

    @contextlib.asynccontextmanager
    async def viewed(timings: Timings = TIMINGS) -> AsyncIterator[DevicePlugin]:
        plugin = make_plugin(device_directory, kubelet.directory, timings=IN_LIFE._replace(recheck=0.1))
        with contextlib.closing(PodResources(socket, [RESOURCE])) as pod_resources:
            view = KubeletView([plugin], pod_resources, Runtime(timings=timings))
            async with run(plugin):
                await ready(plugin)
                async with background_task(view.run()):
                    yield plugin

    return viewed


class Answers:
    """The numbers of allocatable devices that a kubelet answers, one after another, and then the last one."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.requests = 0

    async def before(self) -> None:
        """Run before each answer."""

    async def __call__(self, _context: Any) -> pb.AllocatableResourcesResponse:
        """Return the next number of devices."""
        self.requests += 1
        await self.before()
        number = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        response = pb.AllocatableResourcesResponse()
        for device in range(number):
            for _numa_node in range(2):
                response.devices.add(resource_name=RESOURCE, device_ids=[f"d{device}"])
            response.devices.add(resource_name="example.com/other", device_ids=[f"o{device}"])
        return response


async def test_process_without_device_plugins_does_not_ask_the_kubelet(socket: str) -> None:
    with contextlib.closing(PodResources(socket, [])) as pod_resources:
        async with asyncio.timeout(PATIENCE):
            await KubeletView([], pod_resources, Runtime(timings=TIMINGS)).run()


async def test_kubelet_that_lacks_devices_is_asked_again_soon(kubelet: Kubelet, socket: str, viewed: Viewing) -> None:
    """A loss is repaired after the second answer, which does not wait for the next interval.

    The first two questions follow from the start and the registration.
    """
    seldom = TIMINGS._replace(view_interval=3600.0)
    async with answering(socket, Answers(3, 0, 0, 3)), viewed(seldom) as plugin:
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        await confirmed(plugin, 3)


async def test_kubelet_without_the_api_is_not_compared(socket: str, viewed: Viewing) -> None:
    async def refuse(context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method GetAllocatableResources")

    async with answering(socket, refuse) as server, viewed() as plugin:
        await confirmed(plugin, None, "this kubelet is too old")
        assert server.requests
        assert plugin.ready


async def test_client_counts_each_device_once(socket: str) -> None:
    problem = (await PodResources("", [RESOURCE]).allocatable()).problem
    assert problem == "disabled (pod_resources_socket is empty)"
    with contextlib.closing(PodResources(socket, [RESOURCE, "example.com/absent"])) as client:
        async with answering(socket, Answers(3)):
            assert await client.allocatable() == Allocatable(
                devices={RESOURCE: {"d0", "d1", "d2"}, "example.com/absent": set()}
            )


async def test_plugin_that_is_overridden_is_ready(
    socket: str, viewed: Viewing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollout would otherwise wait for it indefinitely: the kubelet may never have its devices."""
    answers = Answers(2)
    async with answering(socket, answers), viewed() as plugin:
        await until(lambda: not plugin.ready)
        monkeypatch.setattr(type(plugin), "overridden", True)
        await confirmed(plugin, None, "it has those of a plugin that registered later")
        await ready(plugin)


async def test_round_in_which_devices_change_does_not_count(
    kubelet: Kubelet, socket: str, viewed: Viewing, device_directory: DeviceDirectory
) -> None:
    """The kubelet may have answered before it got the new list."""
    answers = Answers(0, 0, 0, 0, 0, 3)

    async def flap() -> None:
        revision = plugin.inventory.snapshot.revision
        if len(answers.answers) > 1:
            device_directory.remove(0) if revision % 2 else device_directory.add(0)
            await plugin.inventory.superseded(revision).wait()

    async with answering(socket, answers), viewed() as plugin:
        answers.before = flap  # type: ignore[method-assign]
        await confirmed(plugin, 3)
        assert (unready(plugin), len(kubelet.registrations)) == ("", 1)
