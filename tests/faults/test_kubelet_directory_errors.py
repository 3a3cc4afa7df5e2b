"""A plugin bears errors of the kubelet's directory at each of its calls, and registers when the directory is back.

The file system is real (``tests.hanging_fs``): its server fails one operation. The kernel turns bind(2) into ``mknod``,
chmod(2) into ``setattr``, stat(2) and each other use of a path into ``lookup`` and ``getattr``.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin.framework.deviceplugin.supervisor import PluginDirectory
from kubelet_standin import DraKubelet, Kubelet
from tests.dra_drivers import DRIVER, FAST_KUBELET, PATIENT, running_driver
from tests.hanging_fs import HangingFileSystem, available
from tests.support import IN_LIFE, PATIENCE, RESOURCE, DeviceDirectory, listed, problem, ready, running, until

ERRORS = [errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOSPC]

FAILED = "registration failed, retrying"

OFTEN = IN_LIFE._replace(safety=0.1)
OFTEN_DRA = PATIENT._replace(safety=0.1)
"""Access the directory often: its recovery causes no file event."""

each_error = pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)


@pytest.fixture
def file_system(short_directory: Path) -> Iterator[HangingFileSystem]:
    """Return a file system whose path is short enough for sockets."""
    if not available():
        pytest.skip("mounts a FUSE file system, which requires root and /dev/fuse")
    with HangingFileSystem(short_directory / "f") as file_system:
        yield file_system


@pytest.fixture
def directory(file_system: HangingFileSystem) -> str:
    """Return a directory in the file system."""
    path = f"{file_system.directory}/plugins"
    os.mkdir(path)
    return path


def leave_stale_socket(path: str) -> None:
    """Leave a socket behind, as a killed process does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


@each_error
@pytest.mark.parametrize("call", ["mknod", "setattr", "lookup", "getattr"])
async def test_device_plugin_registers_after_an_error(
    device_directory: DeviceDirectory, file_system: HangingFileSystem, directory: str, call: str, error: int
) -> None:
    device_directory.add(0)
    async with Kubelet(directory) as kubelet:
        file_system.fail(call, error)
        async with running(device_directory, directory, timings=OFTEN) as plugin:
            await problem(plugin, FAILED)
            assert os.strerror(error) in plugin.unready or call == "mknod"  # gRPC does not return the error of bind
            file_system.release()
            await listed(kubelet, 1)


@each_error
@pytest.mark.parametrize("call", ["opendir", "readdir", "unlink"])
async def test_device_plugin_registers_beside_a_stale_socket(
    device_directory: DeviceDirectory, file_system: HangingFileSystem, directory: str, call: str, error: int
) -> None:
    """Which cannot be found or removed; nor can the plugin's own socket at the end."""
    device_directory.add(0)
    names = PluginDirectory(directory, RESOURCE)
    async with Kubelet(directory) as kubelet:
        leave_stale_socket(f"{directory}/{names.next_endpoint(1.0)}")
        file_system.fail(call, error)
        async with running(device_directory, directory, timings=OFTEN) as plugin:
            await listed(kubelet, 1)
            await ready(plugin)
        file_system.release()


@each_error
@pytest.mark.parametrize("call", ["lookup", "getattr"])
async def test_device_plugin_stays_registered_during_an_error(
    device_directory: DeviceDirectory, file_system: HangingFileSystem, directory: str, call: str, error: int
) -> None:
    device_directory.add(0)
    async with Kubelet(directory) as kubelet, running(device_directory, directory, timings=OFTEN) as plugin:
        await listed(kubelet, 1)
        await ready(plugin)
        file_system.fail(call, error)
        await file_system.until_failed(5)
        assert not plugin.unready
        device_directory.add(1)
        await listed(kubelet, 2)
        file_system.release()
        assert len(kubelet.registrations) == 1


@each_error
@pytest.mark.parametrize("call", ["mknod", "setattr", "rename", "lookup", "getattr"])
async def test_dra_driver_registers_after_an_error(
    file_system: HangingFileSystem, directory: str, call: str, error: int
) -> None:
    file_system.fail(call, error)
    async with running_driver(directory, timings=OFTEN_DRA) as driver:
        await until(lambda: FAILED in driver.service.problem)
        assert os.strerror(error) in driver.service.problem or call == "mknod"
        file_system.release()
        async with DraKubelet(directory, timings=FAST_KUBELET) as kubelet:
            await kubelet.wait_for(lambda k: k.connected(DRIVER) and not driver.service.problem, PATIENCE)


@each_error
@pytest.mark.parametrize("call", ["opendir", "readdir", "unlink"])
async def test_dra_driver_serves_beside_a_stale_socket(
    file_system: HangingFileSystem, directory: str, call: str, error: int
) -> None:
    """Which cannot be found or removed; nor can the driver's own socket at the end."""
    leave_stale_socket(f"{directory}/{DRIVER}-7-1700000000000.sock")
    async with DraKubelet(directory, timings=FAST_KUBELET) as kubelet:
        file_system.fail(call, error)
        async with running_driver(directory, timings=OFTEN_DRA) as driver:
            await kubelet.wait_for(lambda k: k.connected(DRIVER) and driver.service.registered, PATIENCE)
        file_system.release()


@each_error
@pytest.mark.parametrize("call", ["lookup", "getattr"])
async def test_dra_driver_stays_registered_during_an_error(
    file_system: HangingFileSystem, directory: str, call: str, error: int
) -> None:
    async with (
        DraKubelet(directory, timings=FAST_KUBELET) as kubelet,
        running_driver(directory, timings=OFTEN_DRA) as driver,
    ):
        await kubelet.wait_for(lambda k: k.connected(DRIVER) and driver.service.registered, PATIENCE)
        file_system.fail(call, error)
        await file_system.until_failed(5)
        assert not driver.service.problem
        file_system.release()
        assert driver.events.seen == ["ok"]
