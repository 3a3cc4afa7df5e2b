"""Leak detection on real processes and the real /proc."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from aosp_plugin.binder.discovery.binder_device import BinderDevice, Identity, Kind
from aosp_plugin.daemon.leaks import Holder, compare, scan
from tests.support import unprivileged

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = os.geteuid() == 0

HOLD = """
import ctypes, os, sys
if sys.argv[1] == "hidden":
    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: only root can read its descriptors
os.open(sys.argv[2], os.O_RDWR | os.O_NOCTTY)
print("open", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(path: str | Path, mode: str = "open") -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds ``path`` open."""
    command = [sys.executable, "-c", HOLD, mode, str(path)]
    with subprocess.Popen(  # noqa: S603 - a program of this test
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.communicate("")


def device_at(path: str | Path) -> BinderDevice:
    status = os.stat(path)
    return BinderDevice("aosp_binder0", str(path), Kind.FILE, Identity(status.st_dev, status.st_rdev, status.st_ino))


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
        assert leak.command.startswith(f"{sys.executable} -c ?import ctypes, os, sys?")
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
    assert scan([], dict).all_visible is (os.readlink("/proc/self/ns/pid") == "pid:[4026531836]")


@pytest.mark.skipif(ROOT and shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_unreadable_processes_are_counted(device: BinderDevice) -> None:
    """An unprivileged user cannot read processes of other users, nor its own that are not dumpable."""
    program = textwrap.dedent("""\
        import sys
        from aosp_plugin.binder.discovery.binder_device import Identity, Kind, BinderDevice
        from aosp_plugin.daemon.leaks import scan
        identity = Identity(*map(int, sys.argv[1:]))
        leaks = scan([BinderDevice("n0", "/dev/n0", Kind.FILE, identity)], dict)
        print(len(leaks.leaked), leaks.unreadable > 0)
        """)
    assert device.identity is not None
    command = [sys.executable, "-c", program, *map(str, device.identity)]
    with holding(device.path, "hidden"):
        done = subprocess.run(  # noqa: S603 - a program of this test
            unprivileged(command) if ROOT else command, capture_output=True, text=True, check=True, timeout=30
        )
    assert done.stdout == "0 True\n"
