"""Leaks among real processes, found through the real /proc."""

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
from aosp_plugin.daemon.leaks import Holder, changes, find
from tests.support import as_nobody

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = os.geteuid() == 0

OPENS = """
import ctypes, os, sys
if sys.argv[1] == "hidden":
    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: its descriptors are root's to see
os.open(sys.argv[2], os.O_PATH if sys.argv[1] == "path" else os.O_RDWR | os.O_NOCTTY)
print("open", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(path: str | Path, how: str = "open") -> Iterator[subprocess.Popen[str]]:
    """Have another process hold ``path`` open inside."""
    command = [sys.executable, "-c", OPENS, how, str(path)]
    with subprocess.Popen(  # noqa: S603 - a program of this test
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.communicate("")


def node_at(path: str | Path, kind: Kind) -> BinderDevice:
    """Return the node that a scan would make of the file at ``path``."""
    seen = os.stat(path)
    return BinderDevice("aosp_binder0", str(path), kind, Identity(seen.st_dev, seen.st_rdev, seen.st_ino))


@pytest.fixture
def node(tmp_path: Path) -> BinderDevice:
    """Return a node that is a plain file."""
    path = tmp_path / "aosp_binder0"
    path.touch()
    return node_at(path, Kind.FILE)


def found(node: BinderDevice, proc: str = "/proc") -> tuple[Holder, ...]:
    """Return the leaks of a node that nobody was given."""
    return find([node], dict, proc).found


def test_a_process_that_holds_a_node_is_found_until_it_ends(node: BinderDevice) -> None:
    """Its PID, start, user and command line are those that psutil knows."""
    with holding(node.path) as process:
        (leak,) = found(node)
        assert leak.pid == process.pid
        assert leak.started == psutil.Process(process.pid).create_time()
        assert leak.user == os.geteuid()
        assert leak.command.startswith(f"{sys.executable} -c ?import ctypes, os, sys?")
        told = changes((), find([node], dict)).told
    assert told == (leak,)
    assert changes(told, find([node], dict)).gone == (leak,)


def test_a_node_that_was_unlinked_is_found_under_its_old_identity(node: BinderDevice) -> None:
    """And not under that of a node that takes its name."""
    with holding(node.path) as process:
        Path(node.path).rename(f"{node.path}.old")
        Path(node.path).touch()
        Path(f"{node.path}.old").unlink()
        assert [leak.pid for leak in found(node)] == [process.pid]
        assert found(node_at(node.path, Kind.FILE)) == ()


def test_this_process_is_not_found(node: BinderDevice) -> None:
    """The plugin probes nodes, and holds none."""
    with open(node.path, "rb"):
        assert found(node) == ()


def test_a_path_only_descriptor_is_not_found(node: BinderDevice) -> None:
    """It can't reach a driver."""
    with holding(node.path, "path"):
        assert found(node) == ()


def test_a_device_is_found_by_its_number_wherever_its_inode_is() -> None:
    """The terminal of this test stands for a misc node, of which a container has a copy."""
    ours, theirs = os.openpty()
    try:
        path = os.ttyname(theirs)
        number = os.stat(path).st_rdev
        os.close(theirs)
        with holding(path) as process:
            node = BinderDevice("aosp_binder0", "/dev/aosp_binder0", Kind.CDEV, Identity(0, number, 0))
            assert [leak.pid for leak in found(node)] == [process.pid]
    finally:
        os.close(ours)


@pytest.mark.skipif(not ROOT, reason="mknod needs root")
def test_a_stand_in_is_found_though_its_number_is_open_everywhere(tmp_path: Path) -> None:
    """Others that have /dev/null open are none of its holders."""
    path = tmp_path / "aosp_binder0"
    os.mknod(path, 0o20600, os.makedev(1, 3))
    with holding("/dev/null"), holding(path) as process:
        assert [leak.pid for leak in found(node_at(path, Kind.STAND_IN))] == [process.pid]


def test_proc_may_be_somewhere_else(node: BinderDevice, tmp_path: Path) -> None:
    """In a container the host's is; psutil reads the usual one afterwards."""
    elsewhere = tmp_path / "proc"
    elsewhere.symlink_to("/proc")
    with holding(node.path) as process:
        assert [leak.pid for leak in found(node, str(elsewhere))] == [process.pid]
    assert psutil.PROCFS_PATH == "/proc"


def test_the_hosts_pid_namespace_is_told_from_others() -> None:
    """The kernel gives the first one this number (include/linux/proc_ns.h, PROC_PID_INIT_INO)."""
    assert find([], dict).whole is (os.readlink("/proc/self/ns/pid") == "pid:[4026531836]")


@pytest.mark.skipif(ROOT and shutil.which("setpriv") is None, reason="needs setpriv, which util-linux brings")
def test_what_could_not_be_looked_at_is_counted(node: BinderDevice) -> None:
    """To an ordinary user other users' processes, and those that are not dumpable, are closed."""
    program = textwrap.dedent("""\
        import sys
        from aosp_plugin.binder.discovery.binder_device import Identity, Kind, BinderDevice
        from aosp_plugin.daemon.leaks import find
        identity = Identity(*map(int, sys.argv[1:]))
        seen = find([BinderDevice("n0", "/dev/n0", Kind.FILE, identity)], dict)
        print(len(seen.found), seen.unreadable > 0)
        """)
    assert node.identity is not None
    command = [sys.executable, "-c", program, *map(str, node.identity)]
    with holding(node.path, "hidden"):
        done = subprocess.run(  # noqa: S603 - a program of this test
            as_nobody(command) if ROOT else command, capture_output=True, text=True, check=True, timeout=30
        )
    assert done.stdout == "0 True\n"
