"""Plugins and DRA drivers while the directory of the kubelet hangs."""

import asyncio
import os
import tempfile
from collections.abc import Iterator

import pytest

from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.runtime import Runtime
from kubelet_standin import DraKubelet, Kubelet
from tests.dra_drivers import FAST_KUBELET, PATIENT, connected, pod, running_driver
from tests.faults.hanging_fs import HangingFileSystem
from tests.reports import problems_of
from tests.support import IN_LIFE, RESOURCE, DeviceDirectory, causes, listed, problem, ready, reported, until

SOON = PATIENT._replace(hang=0.2, safety=0.1)
"""Report a hang after a moment, and access the directory often."""


@pytest.fixture
def kubelet_path(kubelet_dir: str) -> Iterator[tuple[HangingFileSystem, str]]:
    """Return a file system that hangs on request, and a path of the kubelet's directory that leads through it.

    The path is short enough for a socket.
    """
    with tempfile.TemporaryDirectory() as directory, HangingFileSystem(f"{directory}/h") as file_system:
        os.symlink(kubelet_dir, f"{file_system.source}/plugins")
        yield file_system, f"{file_system.directory}/plugins"


async def test_kubelet_directory_that_hangs_leaves_the_registration_as_it_is(
    kubelet_dir: str, kubelet_path: tuple[HangingFileSystem, str], device_directory: DeviceDirectory
) -> None:
    """Scans and the open stream go on. A plugin stops during a hang, for a reload; its socket stays for now."""
    file_system, path = kubelet_path
    devices = device_directory.directory
    backend = ListedDevices(
        RESOURCE, lambda: [f"/dev/{each.name}" for each in devices.iterdir()], directories=[str(devices)]
    )
    plugin = DevicePlugin(backend, kubelet_dir=path, runtime=Runtime(timings=IN_LIFE._replace(hang=0.2, safety=0.1)))
    async with Kubelet(kubelet_dir) as kubelet:
        task = asyncio.create_task(plugin.run())
        await listed(kubelet, 0)
        await ready(plugin)
        with file_system.hanging():
            await file_system.until_waiting()
            await problem(plugin, "kubelet directory has been hanging for")
            assert problems_of(plugin) == [("error", "kubelet-directory-hangs")]
            assert plugin.registered
            device_directory.add(0)
            await listed(kubelet, 1)
        await ready(plugin)
        assert len(kubelet.registrations) == 1
        with file_system.hanging():
            plugin.stop()
            await task
            await kubelet.wait_for(lambda k: k.resource(RESOURCE).streams == 0)


# -- plugins_registry


async def test_registered_driver_answers_during_a_hang(
    kubelet_dir: str, kubelet_path: tuple[HangingFileSystem, str]
) -> None:
    """The hang is a problem until it ends, and then the registration is the same."""
    file_system, path = kubelet_path
    async with DraKubelet(kubelet_dir, timings=FAST_KUBELET) as kubelet, running_driver(path, timings=SOON) as driver:
        await connected(kubelet, driver)
        with file_system.hanging():
            await file_system.until_waiting()
            await until(lambda: "kubelet directory has been hanging for" in causes(driver.service))
            await kubelet.prepare(pod("game"))
            assert driver.service.registered
        await until(lambda: not reported(driver.service))
        assert len(kubelet.registrations) == 1


async def test_driver_that_begins_during_a_hang_registers_after_it(
    kubelet_dir: str, kubelet_path: tuple[HangingFileSystem, str]
) -> None:
    """And one that is stopped before it could register ends."""
    file_system, path = kubelet_path
    async with DraKubelet(kubelet_dir, timings=FAST_KUBELET) as kubelet:
        with file_system.hanging():
            async with running_driver(path, name="tablet.example.com", timings=SOON) as other:
                await file_system.until_waiting()
            assert not other.service.registered
            async with running_driver(path, timings=SOON) as driver:
                await until(lambda: "has been hanging for" in causes(driver.service))
                file_system.release()
                await until(lambda: not reported(driver.service))
                await connected(kubelet, driver)
