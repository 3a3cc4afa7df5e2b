"""A plugin bears errors of the kubelet's directory at each of its calls, and registers when the directory is back.

The file system is real (``tests.faults.hanging_fs``): its server fails one operation. The kernel turns bind(2) into
``mknod``, and stat(2) and each other use of a path into ``getattr``.
"""

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin import SOCKET_PREFIX
from aosp_plugin.framework.sockets import PluginDirectory
from kubelet_standin import Kubelet
from tests.faults.hanging_fs import HangingFileSystem
from tests.faults.test_mounts_and_scans import BIND, mount, unmount
from tests.support import IN_LIFE, RESOURCE, DeviceDirectory, Serve, listed, problem, ready, running, unready

ERRORS = [errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOSPC]

FAILED = "registration failed, retrying"

OFTEN = IN_LIFE._replace(safety=0.1)

each_error = pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)


@pytest.fixture
def file_system(short_directory: Path) -> Iterator[HangingFileSystem]:
    """Return a file system whose path is short enough for sockets."""
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
@pytest.mark.parametrize("call", ["mknod", "chmod", "getattr"])
async def test_device_plugin_registers_after_an_error(
    device_directory: DeviceDirectory, file_system: HangingFileSystem, directory: str, call: str, error: int
) -> None:
    device_directory.add(0)
    async with Kubelet(directory) as kubelet:
        file_system.fail(call, error)
        async with running(device_directory, directory, timings=OFTEN) as plugin:
            await problem(plugin, FAILED)
            assert os.strerror(error) in unready(plugin) or call == "mknod"  # gRPC does not return the error of bind
            file_system.release()
            await listed(kubelet, 1)


@each_error
@pytest.mark.parametrize("call", ["opendir", "readdir", "unlink"])
async def test_device_plugin_registers_beside_a_stale_socket(
    device_directory: DeviceDirectory, file_system: HangingFileSystem, directory: str, call: str, error: int
) -> None:
    """Which cannot be found or removed; nor can the plugin's own socket at the end."""
    device_directory.add(0)
    names = PluginDirectory(directory, RESOURCE, SOCKET_PREFIX)
    async with Kubelet(directory) as kubelet:
        leave_stale_socket(f"{directory}/{names.next_endpoint(1.0)}")
        file_system.fail(call, error)
        async with running(device_directory, directory, timings=OFTEN) as plugin:
            await listed(kubelet, 1)
            await ready(plugin)
        file_system.release()


@each_error
async def test_device_plugin_stays_registered_during_an_error(
    device_directory: DeviceDirectory, file_system: HangingFileSystem, directory: str, error: int
) -> None:
    device_directory.add(0)
    async with Kubelet(directory) as kubelet, running(device_directory, directory, timings=OFTEN) as plugin:
        await listed(kubelet, 1)
        await ready(plugin)
        file_system.fail("getattr", error)
        await file_system.until_failed(5)
        assert plugin.ready
        device_directory.add(1)
        await listed(kubelet, 2)
        file_system.release()
        assert len(kubelet.registrations) == 1


async def test_plugin_ends_if_its_mount_shows_a_directory_that_the_kubelet_has_made_again(
    short_directory: Path, device_directory: DeviceDirectory
) -> None:
    """A bind mount keeps the removed directory, as in a container: only a new container sees the new one."""
    if os.geteuid() != 0:
        pytest.skip("mounts a directory, which requires root")
    device_directory.add(0)
    hosts, own = short_directory / "h", short_directory / "m"
    hosts.mkdir()
    own.mkdir()
    mount(str(hosts), str(own), flags=BIND)
    try:
        async with Serve(device_directory, str(own)) as plugin:
            async with Kubelet(str(hosts)) as kubelet:
                await listed(kubelet, 1)
            shutil.rmtree(hosts, ignore_errors=True)  # the plugin removes its socket meanwhile
            assert await plugin.finish() == 1
            assert "this container has it as a mount" in "".join(plugin.log)
    finally:
        unmount(str(own))
