"""Reloads of ``aosp-plugin serve`` by SIGHUP: a configuration that cannot be served changes nothing."""

import asyncio
import contextlib
import errno
import json
import operator
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from aosp_plugin.cli.reload import reload
from aosp_plugin.report.document import ReloadReport
from kubelet_standin import Kubelet
from tests.faults.hanging_fs import HangingFileSystem
from tests.support import PATIENCE, RESOURCE, DeviceDirectory, Serve, answered, free_port, http_get, listed

REJECTED = "configuration reload rejected, keeping the current configuration"
FOREIGN = "192.0.2.1:9478"
"""An address of no host (RFC 5737)."""


class Served:
    """A process that serves a configuration file to a kubelet, with two devices."""

    def __init__(self, devices: DeviceDirectory, kubelet_dir: str, file: Path, port: int) -> None:
        self.file = file
        self.port = port
        self._devices = devices
        self._valid = {
            "version": "v1",
            "kubelet_dir": kubelet_dir,
            "device_dir": str(devices.directory),
            "verify": "file",
            "listen": f"127.0.0.1:{port}",
        }
        self.write()
        self.kubelet = Kubelet(kubelet_dir)
        self.serve = Serve(devices, kubelet_dir, "--config", str(file), usual_flags=False)

    async def __aenter__(self) -> Self:
        """Start both, and wait until the kubelet has the devices."""
        self._devices.add(0, 1)
        await self.kubelet.start()
        await self.serve.__aenter__()
        await self.registered()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop both."""
        await self.serve.__aexit__()
        await self.kubelet.stop()

    def write(self, **changes: Any) -> None:
        """Write the configuration with other values, and without keys whose value is None."""
        values = {key: value for key, value in (self._valid | changes).items() if value is not None}
        self.file.write_text(json.dumps(values))

    async def registered(self, name: str = RESOURCE) -> None:
        """Wait until the kubelet has both devices, and the plugin is ready."""
        await listed(self.kubelet, 2, name)
        await answered(self.port, "/readyz", f"ok: {name}: ")

    async def reload(self) -> ReloadReport:
        """Reload the configuration, and return the outcome."""
        return await asyncio.to_thread(reload, f"http://127.0.0.1:{self.port}")

    async def rejected(self, **changes: Any) -> str:
        """Reload a configuration with other values, and return why it is rejected."""
        self.write(**changes)
        return (await self.reload()).error

    async def check_unaffected(self) -> None:
        """Check that the kubelet still has its first stream, which reports changes, and HTTP clients their answers."""
        assert (await http_get(self.port, "/readyz"))[0] == 200
        assert (await http_get(self.port, "/status"))[0] == 200
        self._devices.add(2)
        await listed(self.kubelet, 3)
        self._devices.remove(2)
        await listed(self.kubelet, 2)
        view = self.kubelet.resource(RESOURCE)
        assert (len(self.kubelet.registrations), view.streams, view.streams_opened) == (1, 1, 1)


@pytest.fixture
async def served(device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(device_directory, kubelet_dir, tmp_path / "config.yaml", free_port()) as served:
        yield served


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Return a function that mounts a tmpfs with options, and returns its path."""
    if os.geteuid() != 0:
        pytest.skip("mounts a file system, which requires root")
    with contextlib.ExitStack() as stack:

        def mount(options: str) -> str:
            directory = tmp_path / "mounted"
            directory.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], check=True)  # noqa: S603, S607
            stack.callback(lambda: subprocess.run(["umount", "--lazy", directory], check=True))  # noqa: S603, S607
            return str(directory)

        yield mount


# -- configurations that cannot be served


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"listen": FOREIGN}, f"cannot listen on {FOREIGN}"),
        ({"status_listen": FOREIGN}, f"cannot listen on {FOREIGN}"),
        ({"device_dir": "/etc/hostname"}, "Not a directory: '/etc/hostname'"),
        ({"shared_devices": ["/usr"]}, "shared_devices: /usr is a directory, not a device"),
        ({"device_dir": "/nowhere"}, "cannot read the device directory /nowhere"),
        ({"kubelet_dir": "/nowhere"}, "the kubelet's plugin directory /nowhere does not exist"),
        (
            {"require_devices": True, "device_prefix": "x"},
            "/x* (device_dir, device_prefix), and require_devices is set",
        ),
        (
            {"device_dir": None, "provision": {"count": 3, "directory": "/usr"}},
            "/usr is neither empty nor a binderfs",
        ),
        ({"resource_name": "nonsense"}, "resource_name: 'nonsense' is not allowed"),
        (
            {"resources": [{"device_dir": "/nowhere"}, {"resource_name": "a.io/b", "device_dir": "/also-nowhere"}]},
            "No such file or directory: '/nowhere'; cannot read the device directory /also-nowhere",
        ),
    ],
)
async def test_configuration_that_cannot_be_served_changes_nothing(
    served: Served, changes: dict[str, Any], error: str
) -> None:
    await served.serve.logged("INFO registered")
    before = len(served.serve.log)
    assert error in await served.rejected(**changes)
    assert error in await served.serve.logged(REJECTED)
    logged = "".join(served.serve.log[before:])
    assert "device scan failed" not in logged, "the scan of the running plugin has not failed"
    assert "devices changed" not in logged
    await served.check_unaffected()


def fill(directory: str) -> None:
    """Write a page into a directory, unless it is read-only."""
    with contextlib.suppress(OSError):
        Path(directory, "filler").write_bytes(b"x" * 4096)


@pytest.mark.parametrize(
    ("options", "error"),
    [("size=4k", "No space left on device"), ("ro", "Read-only file system"), (None, "Not a directory")],
)
async def test_cdi_directory_that_cannot_be_written_changes_nothing(
    served: Served, request: pytest.FixtureRequest, tmp_path: Path, options: str | None, error: str
) -> None:
    """It is full, read-only, or a file. A resource that requires no CDI spec does not need it."""
    if options is None:
        directory = str(served.file)
    else:
        directory = request.getfixturevalue("mounted")(options)
        fill(directory)
    changes = {"cdi_dir": directory, "device_list": ["cdi-cri"]}
    assert f"cannot update the CDI spec {directory}/aosp.io_binder.json: {error}" in await served.rejected(**changes)
    await served.check_unaffected()
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []
    served.write(cdi_dir=directory)
    assert (await served.reload()).changed


# -- file systems that hang


@pytest.mark.parametrize(
    "key",
    ["device_dir", "kubelet_dir", "cdi_dir"],
)
async def test_directory_that_hangs_changes_nothing(
    served: Served, hanging_file_system: HangingFileSystem, key: str
) -> None:
    """The plugin serves as before while the reload waits, and rejects it after some seconds."""
    hanging_file_system.hang()
    served.write(**{key: f"{hanging_file_system.directory}/{key}", "device_list": ["cdi-cri"]})
    served.serve.signal(signal.SIGHUP)
    await hanging_file_system.until_waiting()
    await served.check_unaffected()
    await answered(served.port, "/status", "timed out")
    await served.check_unaffected()


async def test_reload_to_another_directory_leaves_one_that_hangs(
    device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path, hanging_file_system: HangingFileSystem
) -> None:
    """What the previous configuration cannot clean up is logged, and keeps nothing from the next one."""
    async with Served(device_directory, kubelet_dir, tmp_path / "config.yaml", free_port()) as served:
        await reload_until_scan_hangs(served, hanging_file_system)
        served.write()
        served.serve.signal(signal.SIGHUP)
        await listed(served.kubelet, 2)
        hanging_file_system.release()


async def test_configuration_that_fails_to_start_is_replaced_by_the_one_before(
    device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path, hanging_file_system: HangingFileSystem
) -> None:
    """Its directory disappears after the check."""
    async with Served(device_directory, kubelet_dir, tmp_path / "config.yaml", free_port()) as served:
        await reload_until_checked(served, hanging_file_system, tmp_path / "other")
        (tmp_path / "other").rmdir()
        hanging_file_system.release()
        await answered(served.port, "/status", f"No such file or directory: '{tmp_path}/other'")
        await served.registered()


async def test_directories_of_kubelet_and_devices_that_fail_during_a_reload_are_waited_for(
    device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path, hanging_file_system: HangingFileSystem
) -> None:
    """Neither configuration can start: one lacks the former, the other both."""
    async with Served(device_directory, kubelet_dir, tmp_path / "config.yaml", free_port()) as served:
        await reload_until_checked(served, hanging_file_system, tmp_path / "other")
        os.rename(kubelet_dir, tmp_path / "away")
        hanging_file_system.fail("opendir", errno.EIO)
        await served.serve.logged(REJECTED)
        await served.serve.logged("device scan failed")
        hanging_file_system.release()
        os.rename(tmp_path / "away", kubelet_dir)
        await listed(served.kubelet, 2)


async def reload_until_checked(served: Served, hanging_file_system: HangingFileSystem, following: Path) -> None:
    """Reload, and return when the new configuration is checked: the one before waits for its file system to end."""
    await reload_until_scan_hangs(served, hanging_file_system)
    os.mkdir(following)
    served.write(device_dir=str(following))
    served.serve.signal(signal.SIGHUP)
    await served.kubelet.wait_for(lambda kubelet: kubelet.resource(RESOURCE).streams == 0)


async def reload_until_scan_hangs(served: Served, hanging_file_system: HangingFileSystem) -> None:
    """Reload to a directory on a file system, and return when a scan of it hangs."""
    create(f"{hanging_file_system.source}/aosp_binder7")
    served.write(device_dir=hanging_file_system.directory)
    served.serve.signal(signal.SIGHUP)
    await listed(served.kubelet, 1)
    hanging_file_system.hang()
    create(f"{hanging_file_system.source}/aosp_binder8")
    served.serve.signal(signal.SIGHUP)  # rescans
    await hanging_file_system.until_waiting()


def create(path: str) -> None:
    Path(path).touch()


# -- what stays


def resources(pid: int) -> tuple[int, int]:
    """Return the number of descriptors and threads of a process."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


async def test_reloads_leave_no_descriptor_and_no_thread(served: Served) -> None:
    """Neither those that are accepted nor those that are rejected."""
    pid = served.serve.process.pid

    async def reloads(number: int) -> None:
        name = f"example.com/{number}"
        served.write(resource_name=name)
        served.serve.signal(signal.SIGHUP)
        await served.registered(name)
        await served.rejected(status_listen=FOREIGN, leak_scan_interval=60)
        await served.rejected(device_dir="/nowhere")

    await reloads(0)
    before = resources(pid)
    for number in range(1, 6):
        await reloads(number)
    async with asyncio.timeout(PATIENCE):
        while any(map(operator.gt, resources(pid), before)):  # some threads and connections end a moment later
            await http_get(served.port, "/healthz")


# -- addresses


async def test_clients_of_an_unchanged_address_are_answered_during_a_reload(served: Served) -> None:
    """Each connection gets an answer, before, during and after the change of generations."""
    statuses, done = set(), asyncio.Event()

    async def poll() -> None:
        while not done.is_set():
            statuses.add((await http_get(served.port, "/healthz"))[0])

    async with asyncio.TaskGroup() as clients:
        for _ in range(3):
            clients.create_task(poll())
        for name in ("example.com/one", "example.com/two"):
            served.write(resource_name=name, log_level="debug")
            served.serve.signal(signal.SIGHUP)
            await listed(served.kubelet, 2, name)
        done.set()
    assert statuses == {200}
