"""``aosp-plugin serve`` under faults of the process and of the host: what is survived, and what ends the process."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_standin import Container, Kubelet, Pod
from tests.faults.hanging_fs import HangingFileSystem
from tests.support import (
    PATIENCE,
    RESOURCE,
    DeviceDirectory,
    Serve,
    answered,
    free_port,
    http_get,
    listed,
    without_descriptors,
)

LEAK = "leaked device: held open by a process outside its pod"
LEAK_DETECTION = {"AOSP_PLUGIN_LEAK_SCAN_INTERVAL": "1"}


@contextlib.contextmanager
def holding(path: str | Path) -> Iterator[None]:
    """Run a process that holds a file open."""
    program = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - ours
        assert process.stdout
        process.stdout.readline()
        try:
            yield
        finally:
            process.communicate()


class Systemd:
    """The socket on which systemd receives notifications."""

    def __init__(self, path: Path) -> None:
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "100000"}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0.0)

    async def watchdog(self, count: int) -> None:
        """Wait for so many watchdog notifications."""
        async with asyncio.timeout(PATIENCE):
            while count:
                count -= b"WATCHDOG=1" in await asyncio.get_running_loop().sock_recv(self._socket, 4096)

    def drain(self) -> None:
        """Drop what has arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(4096)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with contextlib.closing(Systemd(tmp_path / "notify")) as systemd:
        yield systemd


# -- descriptors


async def test_everything_works_after_descriptors_ran_out(
    device_directory: DeviceDirectory, kubelet_dir: str, systemd: Systemd
) -> None:
    """Clients wait meanwhile. systemd's watchdog is fed all the time, or systemd would kill the process."""
    device_directory.add(0, 1)
    port = free_port()
    environment = LEAK_DETECTION | systemd.environment
    flags = ["--listen", f"127.0.0.1:{port}"]
    async with (
        Kubelet(kubelet_dir) as kubelet,
        Serve(device_directory, kubelet_dir, *flags, environment=environment) as serve,
    ):
        await listed(kubelet, 2)
        await answered(port, "/readyz", "ok: ")
        with contextlib.ExitStack() as clients:
            with without_descriptors(serve.process.pid):
                for _ in range(8):
                    client = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
                    client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
                await serve.logged("leak scan failed, retrying")
                systemd.drain()
                await systemd.watchdog(20)
                device_directory.add(2)
            await listed(kubelet, 3)
        await systemd.watchdog(20)
        assert (await http_get(port, "/readyz"))[0] == 200
        with holding(device_directory.directory / "aosp_binder2"):
            await answered(port, "/metrics", f'\naosp_plugin_leaked_devices{{resource="{RESOURCE}"}} 1.0')
        assert "device=aosp_binder2" in await serve.logged(LEAK)
        assert (await http_get(port, "/metrics"))[0] == 200
        await kubelet.admit(Pod("phone", [Container("android", {RESOURCE: 1})]))
        assert len(kubelet.registrations) == 1


DESCRIPTORS_RUN_OUT = """\
import os, resource, socket, sys, time

left = [3]

def run_out():
    if left:
        resource.setrlimit(resource.RLIMIT_NOFILE, (left.pop(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def at_the_import():
    pass

def watch(event, values):
    if event == "open" and os.path.basename(str(values[0])).startswith("endpoints."):
        while not os.path.exists(os.environ["REGISTERED"]):
            time.sleep(0.01)
        at_the_import()

sys.addaudithook(watch)
"""
"""The import of the HTTP servers' module waits for the file REGISTERED: without descriptors, gRPC ends the process."""

AT_THE_IMPORT = "at_the_import = run_out"

AT_THE_SOCKETS = """\
original = socket.socketpair

def socketpair(*arguments):
    if os.path.exists(os.environ["REGISTERED"]):
        run_out()
    return original(*arguments)

socket.socketpair = socketpair
"""


@pytest.mark.parametrize("moment", [AT_THE_IMPORT, AT_THE_SOCKETS])
async def test_http_servers_start_when_descriptors_are_free_again(
    device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path, moment: str
) -> None:
    """They start after the registration. A process that ended for want of descriptors would take its devices along."""
    device_directory.add(0)
    (tmp_path / "sitecustomize.py").write_text(DESCRIPTORS_RUN_OUT + moment)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "REGISTERED": str(tmp_path / "registered")}
    port, status_port = free_port(), free_port()
    flags = ["--listen", f"127.0.0.1:{port}", "--status-listen", f"127.0.0.1:{status_port}"]
    async with (
        Kubelet(kubelet_dir) as kubelet,
        Serve(device_directory, kubelet_dir, *flags, environment=environment) as serve,
    ):
        await listed(kubelet, 1)
        await serve.logged("registered")
        (tmp_path / "registered").touch()
        assert "Too many open files" in await serve.logged("HTTP server failed to start, retrying")
        limit = resource.prlimit(serve.process.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(serve.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        assert (await http_get(port, "/healthz"))[0] == 200
        assert (await http_get(status_port, "/status"))[0] == 200
        assert len(kubelet.registrations) == 1


# -- leak scans that hang


async def test_leak_scan_that_hangs_affects_nothing_else(
    device_directory: DeviceDirectory, kubelet_dir: str, hanging_file_system: HangingFileSystem
) -> None:
    """A process has a file open on a file system that hangs.

    SIGTERM ends the plugin in time; the exit code would be another one if it had been ended by force.
    """
    device_directory.add(0)
    port = free_port()
    os.mknod(f"{hanging_file_system.source}/file")
    with holding(f"{hanging_file_system.directory}/file"), hanging_file_system.hanging():
        async with (
            Kubelet(kubelet_dir) as kubelet,
            Serve(device_directory, kubelet_dir, "--listen", f"127.0.0.1:{port}", environment=LEAK_DETECTION) as serve,
        ):
            await listed(kubelet, 1)
            await hanging_file_system.until_waiting()
            device_directory.add(1)
            await listed(kubelet, 2)
            await kubelet.admit(Pod("phone", [Container("android", {RESOURCE: 1})]))
            for path in ("/healthz", "/readyz", "/metrics", "/status"):
                assert (await http_get(port, path))[0] == 200
            serve.signal(signal.SIGTERM)
            assert await serve.finish() == 0


# -- host trouble is not the process's


async def test_cdi_directory_that_is_a_file_keeps_no_device_from_the_kubelet(
    device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path
) -> None:
    """Not at the start of the process either. Readiness fails, and liveness does not."""
    cdi = tmp_path / "cdi"
    cdi.touch()
    device_directory.add(0)
    port = free_port()
    config = {"version": "v1", "cdi_dir": str(cdi), "device_list": ["volume-mounts", "cdi-cri"]}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    flags = ["--listen", f"127.0.0.1:{port}", "--config", str(tmp_path / "config.yaml")]
    async with Kubelet(kubelet_dir) as kubelet, Serve(device_directory, kubelet_dir, *flags):
        await listed(kubelet, 1)
        device_directory.add(1)
        await listed(kubelet, 2)
        assert (await answered(port, "/readyz", "cannot update the CDI spec"))[0] == 503
        assert (await http_get(port, "/healthz"))[::2] == (200, "ok\n")
        cdi.unlink()
        await answered(port, "/readyz", "ok: ")
        assert (cdi / "aosp.io_binder.json").exists()
