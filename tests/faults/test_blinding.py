"""What a process without any right does to blind ``aosp-plugin holders``, with real processes and file systems."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.faults.hanging_fs import HangingFileSystem
from tests.support import PATIENCE, DeviceDirectory

OPEN = "import sys; file = open(sys.argv[1])\n"
WAIT = "print(flush=True); sys.stdin.read()\n"

SHARED_TABLE = (
    """\
import ctypes, os, resource, signal, sys

limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
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


@pytest.fixture
def devices(device_directory: DeviceDirectory) -> DeviceDirectory:
    device_directory.add(0, 1)
    return device_directory


def holders(devices: DeviceDirectory) -> tuple[list[int], str]:
    """Return the process of each row that ``aosp-plugin holders`` prints, and what it says on standard error."""
    command = [sys.executable, "-m", "aosp_plugin", "holders", "--device-dir", str(devices.directory)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603 - ours
    assert shown.returncode in {0, 3}, shown.stderr
    return [int(row.split()[4]) for row in shown.stdout.splitlines()[1:]], shown.stderr


def test_descriptors_that_hundreds_of_processes_share_hide_no_holder(devices: DeviceDirectory) -> None:
    """401 processes share a table with 500 descriptors."""
    with process(SHARED_TABLE, "500"), process(OPEN + WAIT, f"{devices.directory}/aosp_binder1") as pid:
        found, _ = holders(devices)
    assert found == [pid]


def test_descriptor_of_a_file_system_that_does_not_answer_hides_no_holder(
    devices: DeviceDirectory, hanging_file_system: HangingFileSystem
) -> None:
    """A FUSE server of a tenant that leaves every request waiting, also to SIGKILL of who asked."""
    os.mknod(f"{hanging_file_system.source}/file")
    with (
        process(OPEN + WAIT, f"{hanging_file_system.directory}/file") as silent,
        process(OPEN + WAIT, f"{devices.directory}/aosp_binder1") as pid,
        hanging_file_system.hanging(),
    ):
        found, unread = holders(devices)
    assert found == [pid]
    assert f"process {silent}" not in unread
