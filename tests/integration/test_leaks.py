"""Leak detection on real processes and the real /proc."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, Kind
from aosp_plugin.report.leaks import Holder, compare, scan

HOLD = """
import os, sys
os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
print("open", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(path: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds ``path`` open."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(  # noqa: S603 - a program of this test
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.communicate("")


def device_at(path: str | Path) -> BinderDevice:
    status = os.stat(path)
    return BinderDevice(
        "aosp_binder0", str(path), Kind.FILE, FileIdentity(status.st_dev, status.st_rdev, status.st_ino)
    )


@pytest.fixture
def device(tmp_path: Path) -> BinderDevice:
    """Return a binder device that is a plain file."""
    path = tmp_path / "aosp_binder0"
    path.touch()
    return device_at(path)


def leaked(device: BinderDevice) -> tuple[Holder, ...]:
    """Return the leaks of a device that is not allocated."""
    return scan([device], dict).leaked


def test_leak_is_reported_until_the_process_exits(device: BinderDevice) -> None:
    with holding(device.path) as process:
        (leak,) = leaked(device)
        assert leak.pid == process.pid
        assert leak.started == psutil.Process(process.pid).create_time()
        assert leak.user == os.geteuid()
        assert leak.command.startswith(f"{sys.executable} -c ?import os, sys?")
        open_leaks = compare((), scan([device], dict)).open
    assert open_leaks == (leak,)
    assert compare(open_leaks, scan([device], dict)).released == (leak,)


def test_unlinked_device_is_found_by_its_old_identity(device: BinderDevice) -> None:
    """A new device of the same name has another identity and is not leaked."""
    with holding(device.path) as process:
        Path(device.path).rename(f"{device.path}.old")
        Path(device.path).touch()
        Path(f"{device.path}.old").unlink()
        assert [leak.pid for leak in leaked(device)] == [process.pid]
        assert leaked(device_at(device.path)) == ()


def test_own_process_is_ignored(device: BinderDevice) -> None:
    with open(device.path, "rb"):
        assert leaked(device) == ()


def test_all_processes_are_visible_in_the_hosts_pid_namespace() -> None:
    """The kernel gives the initial namespace this number (include/linux/proc_ns.h, PROC_PID_INIT_INO)."""
    causes = [gap.cause for gap in scan([], dict).gaps]
    visible = "no kernel thread is visible, as without hostPID" not in causes
    assert visible is (os.readlink("/proc/self/ns/pid") == "pid:[4026531836]")
