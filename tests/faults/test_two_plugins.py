"""Two plugins of one resource on a node: processes that override each other at the kubelet."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from aosp_plugin.framework.sockets import PluginDirectory
from kubelet_standin import Container, Kubelet, Pod, PodResources
from tests.support import RESOURCE, DeviceDirectory, Serve, listed, until

TAKEN_OVER = "INFO later plugin of the resource has taken over"
FOUND, GONE = "another plugin of the resource is running", "no other plugin of the resource is running"


@pytest.fixture
def node(kubelet: Kubelet, device_directory: DeviceDirectory) -> Kubelet:
    """Return a kubelet on a node with three devices."""
    device_directory.add(0, 1, 2)
    return kubelet


class Plugin(Serve):
    """A plugin with short intervals, as a process."""

    def __init__(self, node: Kubelet, pod_resources: PodResources, devices: DeviceDirectory) -> None:
        super().__init__(devices, node.directory)
        self._kubelet_dir = node.directory
        arguments = [node.directory, pod_resources.path, str(devices.directory)]
        self._command = [sys.executable, "-m", "tests.plugin_process", *arguments]

    async def registered(self) -> None:
        """Wait until the plugin has marked its socket for others as that of a registered plugin."""
        own = PluginDirectory(self._kubelet_dir, RESOURCE)
        await until(lambda: any(each.pid == self.process.pid and each.registered for each in own.other_plugins()))


async def admitted(node: Kubelet) -> None:
    """Start a pod with a device: the kubelet calls Allocate of the current plugin."""
    pod = Pod("phone", [Container("main", {RESOURCE: 1})])
    await node.admit(pod)
    await node.finish(pod)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("is_first", [True, False])
async def test_end_of_one_of_two_plugins(
    node: Kubelet,
    device_directory: DeviceDirectory,
    pod_resources: PodResources,
    end: signal.Signals,
    *,
    is_first: bool,
) -> None:
    """The other one registers again if the kubelet has lost its devices.

    Kubelets with the bug disconnect the second one when the first one ends. Kubelets before 1.37 mark all devices
    unhealthy when the second one ends, and keep the stream of the first one open. With 1.20, which has no
    GetAllocatableResources, the first one registers again because the second one is gone.
    """
    async with Plugin(node, pod_resources, device_directory) as first:
        await first.registered()
        async with Plugin(node, pod_resources, device_directory) as second:
            await second.registered()
            ending, other = (first, second) if is_first else (second, first)
            assert "process" in await other.logged(FOUND)
            await node.wait_for(lambda k: k.resource(RESOURCE).streams == 2)
            ending.signal(end)
            await ending.finish()
            await other.logged(GONE)
            if not is_first:
                await node.wait_for(lambda k: k.resource(RESOURCE).streams_opened == 3)
            await listed(node, 3)
            await admitted(node)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_second_plugin_that_the_first_one_never_sees_running(
    node: Kubelet, device_directory: DeviceDirectory, pod_resources: PodResources, end: signal.Signals
) -> None:
    """Its socket tells the first one, which does not run meanwhile."""
    async with Plugin(node, pod_resources, device_directory) as first:
        await first.registered()
        await listed(node, 3)
        first.signal(signal.SIGSTOP)
        async with Plugin(node, pod_resources, device_directory) as second:
            await second.registered()
            second.signal(end)
            await second.finish()
        first.signal(signal.SIGCONT)
        await node.wait_for(lambda k: k.resource(RESOURCE).streams_opened == 3)
        await listed(node, 3)
        await admitted(node)
        await until(lambda: PluginDirectory(node.directory, RESOURCE).stale_sockets() == [])


async def test_earlier_plugin_leaves_kubelet_and_host_to_one_with_another_configuration(
    node: Kubelet, pod_resources: PodResources, device_directory: DeviceDirectory, tmp_path: Path
) -> None:
    """A rolling update with maxSurge. The earlier plugin takes over if the later one ends.

    It neither registers again, although the kubelet has fewer devices than it published, nor sends its list again.
    """
    others = DeviceDirectory(tmp_path / "others")
    others.add(0)
    async with Plugin(node, pod_resources, device_directory) as first:
        await first.registered()
        await listed(node, 3)
        async with Plugin(node, pod_resources, others) as second:
            await second.registered()
            await first.logged(TAKEN_OVER)
            device_directory.add(3)
            await first.logged("INFO devices changed")
            requests = pod_resources.requests
            while pod_resources.requests < requests + 10:  # noqa: ASYNC110 - the comparisons of other processes
                await asyncio.sleep(0.02)
            assert len(node.registrations) == 2
            await listed(node, 1)
            second.signal(signal.SIGTERM)
            await second.finish()
            await listed(node, 4)
            await admitted(node)


async def test_later_plugin_publishes_its_devices_again_when_the_earlier_one_ends(
    node: Kubelet, device_directory: DeviceDirectory, pod_resources: PodResources, tmp_path: Path
) -> None:
    """The earlier one may have sent its list last, before it noticed the later one."""
    others = DeviceDirectory(tmp_path / "others")
    others.add(0)
    async with Plugin(node, pod_resources, device_directory) as first:
        await first.registered()
        async with Plugin(node, pod_resources, others) as second:
            await second.registered()
            await second.logged(FOUND)
            messages = node.resource(RESOURCE).messages
            first.signal(signal.SIGKILL)
            await first.finish()
            await node.wait_for(lambda k: k.resource(RESOURCE).messages > messages)
            await listed(node, 1)


async def test_a_second_plugin_that_is_not_registered_overrides_none(
    node: Kubelet, device_directory: DeviceDirectory, pod_resources: PodResources
) -> None:
    async with Plugin(node, pod_resources, device_directory) as first:
        await first.registered()
        node.faults.hang_register = True
        async with Plugin(node, pod_resources, device_directory):
            await first.logged(FOUND)
            device_directory.remove(2)
            await node.wait_for(lambda kubelet: kubelet.resource(RESOURCE).allocatable == 2)
        node.faults.release_register()
    assert not any(TAKEN_OVER in line for line in first.log)
