"""What a process without any right does to blind leak detection, or to exhaust the plugin that runs it."""

import contextlib
import json
import re
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kubelet_standin import Kubelet
from tests.support import RESOURCE, DeviceDirectory, Serve, answered, free_port, listed

LEAK = "leaked device: held open by a process outside its pod"
LEAKED = f'\naosp_plugin_leaked_devices{{resource="{RESOURCE}"}}'
MIB = 1024 * 1024

OPEN = "import sys; file = open(sys.argv[1])\n"
WAIT = "print(flush=True); sys.stdin.read()\n"

WITHOUT_RIGHTS = """\
import ctypes, os, resource, signal, sys

for limit in (int(open("/proc/sys/fs/nr_open").read()), resource.getrlimit(resource.RLIMIT_NOFILE)[1]):
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        break
    except ValueError:
        pass  # not even root may raise it here
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
"""

SHARED_TABLE = (
    WITHOUT_RIGHTS
    + """
libc, clone = ctypes.CDLL(None), {"x86_64": 56, "aarch64": 220}[os.uname().machine]
CLONE_FILES, PR_SET_PDEATHSIG = 0x400, 1
null = os.open("/dev/null", os.O_RDONLY)
for _ in range(int(sys.argv[1])):
    os.dup(null)
for _ in range(400):
    if not libc.syscall(clone, CLONE_FILES | signal.SIGCHLD, 0, 0, 0, 0):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        while True:
            signal.pause()
"""
    + WAIT
)


LARGEST_TABLE = (
    WITHOUT_RIGHTS
    + """
try:
    while True:
        os.dup(1)
except OSError:
    pass
"""
    + WAIT
)


@contextlib.contextmanager
def process(program: str, *arguments: str) -> Iterator[int]:
    """Run a Python program until it prints a line; yield its PID, and let it end."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:  # noqa: S603 - ours
        assert running.stdout
        assert running.stdout.readline()
        try:
            yield running.pid
        finally:
            running.communicate()


@contextlib.asynccontextmanager
async def serving(devices: DeviceDirectory, kubelet_dir: str) -> AsyncIterator[tuple[Serve, int]]:
    """Run a plugin that scans for leaks each second; yield it and its port, when it is registered."""
    port = free_port()
    environment = {"AOSP_PLUGIN_LEAK_SCAN_INTERVAL": "1", "AOSP_PLUGIN_POD_RESOURCES_SOCKET": ""}
    flags = ["--listen", f"127.0.0.1:{port}"]
    async with (
        Kubelet(kubelet_dir) as kubelet,
        Serve(devices, kubelet_dir, *flags, environment=environment) as serve,
    ):
        await listed(kubelet, 2)
        yield serve, port


def peak(pid: int) -> int:
    """Return the most memory of a process since the last call, in bytes (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.fixture
def devices(device_directory: DeviceDirectory) -> DeviceDirectory:
    device_directory.add(0, 1)
    return device_directory


async def test_descriptors_that_hundreds_of_processes_share_hide_no_leak_of_others(
    devices: DeviceDirectory, kubelet_dir: str
) -> None:
    """401 processes share a table with as many descriptors as one may have. Log and status name their user."""
    count = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]) - 100
    with process(SHARED_TABLE, str(count)), process(OPEN + WAIT, f"{devices.directory}/aosp_binder1") as pid:
        async with serving(devices, kubelet_dir) as (serve, port):
            cause = "more than 50,000 file descriptors of user 65534 outside containers"
            _, body = await answered(port, "/status", cause)
            report = json.loads(body)["resources"][0]
            assert (report["leak_detection"], cause in report["leaks_problem"]) == ("incomplete", True)
            assert f"pid={pid} " in await serve.logged(LEAK)
            line = await serve.logged(cause)
            assert re.search(r"leak detection incomplete .*: \d+ processes such as \d+ \(", line), line
            assert not [line for line in serve.log if "leak scan failed" in line]


async def test_descriptors_of_a_process_take_no_memory(devices: DeviceDirectory, kubelet_dir: str) -> None:
    """The largest table that this machine allows: a million descriptors, whose names have 69 MiB."""
    async with serving(devices, kubelet_dir) as (serve, port):
        with process(OPEN + WAIT, f"{devices.directory}/aosp_binder0"):
            await answered(port, "/metrics", f"{LEAKED} 1.0")
        await answered(port, "/metrics", f"{LEAKED} 0.0")
        before = peak(serve.process.pid)
        with process(LARGEST_TABLE), process(OPEN + WAIT, f"{devices.directory}/aosp_binder1"):
            await answered(port, "/metrics", f"{LEAKED} 1.0")
            assert peak(serve.process.pid) - before < 16 * MIB
