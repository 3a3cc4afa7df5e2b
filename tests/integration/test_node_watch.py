"""What is recorded of real plugins for Events on the Node: devices, registration, and a second plugin."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.timings import Timings
from aosp_plugin.report.node_events import Occurrence, ResourceWatch
from kubelet_standin import Kubelet
from tests.support import IN_LIFE, RESOURCE, Clock, DeviceDirectory, listed, make_plugin, ready, run, until


class Watched:
    """A plugin that is watched, with a clock that the test moves."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self.clock = Clock()
        self._recorded: list[Occurrence] = []
        self._watch = ResourceWatch(plugin, clock=self.clock)

    def after(self, seconds: float) -> list[str]:
        """Let time pass, read the state once, and return the reasons of what it has recorded."""
        self.clock.now += seconds
        self._recorded = [*self._watch.occurrences()]
        return [occurrence.reason for occurrence in self._recorded]

    @property
    def messages(self) -> list[str]:
        """The messages of what was recorded last."""
        return [occurrence.message for occurrence in self._recorded]


async def test_devices_that_are_lost_within_seconds_are_one_event(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    device_directory.add(0, 1, 2, 3)
    async with Kubelet(kubelet_dir) as kubelet, run(make_plugin(device_directory, kubelet_dir)) as plugin:
        await listed(kubelet, 4)
        watched = Watched(plugin)
        assert watched.after(0.0) == []
        device_directory.remove(1)
        await listed(kubelet, 3)
        assert watched.after(1.0) == [], "further devices may follow"
        device_directory.remove(2)
        await listed(kubelet, 2)
        assert watched.after(4.9) == []
        assert watched.after(0.2) == ["DevicesLost"]
        assert watched.messages == [
            f"2 devices of {RESOURCE} lost: 2 missing (aosp_binder1, aosp_binder2); 2 of 4 are healthy"
        ]
        assert watched.after(60.0) == []


async def test_a_device_that_is_soon_back_is_no_event(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    device_directory.add(0, 1)
    async with Kubelet(kubelet_dir) as kubelet, run(make_plugin(device_directory, kubelet_dir)) as plugin:
        await listed(kubelet, 2)
        watched = Watched(plugin)
        assert watched.after(0.0) == []
        device_directory.remove(1)
        await listed(kubelet, 1)
        assert watched.after(1.0) == []
        device_directory.add(1)
        await listed(kubelet, 2)
        assert watched.after(5.0) == []


async def test_a_kubelet_that_is_away_is_an_event_after_some_seconds(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet, run(make_plugin(device_directory, kubelet_dir)) as plugin:
        await listed(kubelet, 1)
        watched = Watched(plugin)
        assert watched.after(100.0) == []
        await kubelet.stop()
        await until(lambda: not plugin.registered)
        assert watched.after(0.0) == []
        assert watched.after(15.0) == ["PluginNotRegistered"]
        assert "the kubelet has not registered the plugin: " in watched.messages[0]
        await kubelet.start()
        await ready(plugin)
        assert watched.after(1.0) == ["PluginRegistered"]


async def test_a_kubelet_that_has_lost_devices_is_an_event(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    device_directory.add(0, 1, 2)
    async with Kubelet(kubelet_dir) as kubelet, run(make_plugin(device_directory, kubelet_dir)) as plugin:
        await listed(kubelet, 3)
        watched = Watched(plugin)
        plugin.confirmation.compare(1, 3, 0.0, Timings())
        assert watched.after(0.0) == [], "a kubelet may be asked too early"
        plugin.confirmation.compare(1, 3, 5.0, Timings())
        assert watched.after(0.0) == ["KubeletLostDevices"]
        assert watched.messages == [f"{RESOURCE}: the kubelet has 1 of 3 healthy devices"]
        plugin.confirmation.compare(3, 3, 10.0, Timings())
        assert watched.after(0.0) == ["KubeletHasDevices"]


@contextlib.asynccontextmanager
async def another_plugin(device_directory: DeviceDirectory, kubelet: Kubelet) -> AsyncIterator[None]:
    """Run a plugin of the same resource in a process of its own, from the time when it is registered."""
    registrations = len(kubelet.registrations)
    arguments = (str(kubelet.directory), "/no-socket", str(device_directory.directory))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.plugin_process", *arguments)
    try:
        await kubelet.wait_for(lambda each: len(each.registrations) > registrations)
        await listed(kubelet, 1)
        yield
    finally:
        process.terminate()
        await process.wait()


OFTEN = IN_LIFE._replace(recheck=0.05)


async def test_the_later_one_of_two_plugins_reports_both(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    device_directory.add(0)
    plugin = make_plugin(device_directory, kubelet_dir, timings=OFTEN)
    async with Kubelet(kubelet_dir) as kubelet, another_plugin(device_directory, kubelet), run(plugin):
        await until(lambda: bool(plugin.registered and plugin.notice))
        watched = Watched(plugin)
        assert watched.after(0.0) == []
        assert watched.after(60.0) == ["SecondPlugin"]
        assert "another plugin of this resource runs on this node" in watched.messages[0]
