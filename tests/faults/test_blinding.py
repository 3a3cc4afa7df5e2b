"""What a process without any right does to blind ``aosp-plugin holders``, with real processes and file systems."""

import os
import subprocess
import sys

import pytest

from tests.faults.hanging_fs import HangingFileSystem
from tests.support import OPEN, PATIENCE, DeviceDirectory, other_process

SHARED_TABLE = """\
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
    with other_process(SHARED_TABLE, "500"), other_process(OPEN, f"{devices.directory}/aosp_binder1") as holder:
        found, _ = holders(devices)
    assert found == [holder.pid]


def test_descriptor_of_a_file_system_that_does_not_answer_hides_no_holder(
    devices: DeviceDirectory, hanging_file_system: HangingFileSystem
) -> None:
    """A FUSE server of a tenant that leaves every request waiting, also to SIGKILL of who asked."""
    os.mknod(f"{hanging_file_system.source}/file")
    with (
        other_process(OPEN, f"{hanging_file_system.directory}/file") as silent,
        other_process(OPEN, f"{devices.directory}/aosp_binder1") as holder,
        hanging_file_system.hanging(),
    ):
        found, unread = holders(devices)
    assert found == [holder.pid]
    assert f"process {silent.pid}" not in unread
