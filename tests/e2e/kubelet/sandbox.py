"""A machine within the machine, so that the kubelet's compile-time paths are ours alone, and nothing stays behind.

The harness runs in namespaces of its own: mounts, process IDs, network. There, ``/dev``, ``/run``, ``/var/log``,
``/var/lib/kubelet`` and ``/var/lib/cni`` are fresh file systems in memory, ``/dev`` with copies of the machine's
devices. When its first process ends, the kernel ends every other one and drops the rest. What is shared with the
machine in spite of that (sysctls and cgroups) is put back by :func:`enter`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.common import cache
from tests.e2e.kubelet.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OWN: Final = ("/run", "/var/log", "/var/lib/kubelet", "/var/lib/cni")
SYSCTLS: Final = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
"""What a kubelet writes when it starts."""
NODE_ADDRESS: Final = "192.0.2.10"
CGROUPS: Final = Path("/sys/fs/cgroup")
_APART: Final = ("--mount", "--pid", "--fork", "--kill-child", "--net", "--propagation", "private")
_PASSED_ON: Final = ("pts", "shm", "mqueue")


def problem() -> str:
    """Return why there can't be a sandbox on this machine, or ""."""
    if not re.search(r"^\S+ /sys/fs/cgroup\S* cgroup2? ", Path("/proc/mounts").read_text(), re.MULTILINE):
        return "no cgroups are mounted"
    try:
        run("unshare", *_APART, "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    except AssertionError as error:
        return f"no namespaces of one's own: {error}"
    return ""


def enter(module: str, arguments: Sequence[str], *, project: Path, seconds: float) -> int:
    """Run a Python module in the sandbox as its first process, and return its exit code."""
    command = ("unshare", *_APART, "--mount-proc", sys.executable, "-m", module, *arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what is put back is put back then, too
    with cache.alone("sandbox"), _directories(), _sysctls(), _cgroups():
        process = subprocess.Popen(command, cwd=project)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"not ok - the whole run took more than {seconds:.0f} s, and was ended\n")
            return 1
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _directories() -> Iterator[None]:
    """Have the directories that are mounted over, and remove those again that were not there."""
    made = [path for path in OWN if not os.path.isdir(path)]
    for path in made:
        os.makedirs(path)
    try:
        yield
    finally:
        for path in reversed(made):
            os.rmdir(path)


@contextlib.contextmanager
def _sysctls() -> Iterator[None]:
    """Put back what the kubelet sets."""
    before = {name: Path("/proc/sys", name).read_text() for name in SYSCTLS}
    try:
        yield
    finally:
        for name, value in before.items():
            Path("/proc/sys", name).write_text(value)


@contextlib.contextmanager
def _cgroups() -> Iterator[None]:
    """Remove the containers' cgroups, if there were none before."""
    before = set(CGROUPS.glob("**/k8s.io"))
    try:
        yield
    finally:
        for top in set(CGROUPS.glob("**/k8s.io")) - before:
            for path, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)


def furnish(*, devices: bool = True) -> None:
    """Give the sandbox, from within, its file systems and its network; its own /dev only with ``devices``."""
    run("mount", "--make-rshared", "/")
    if devices:
        _dev()
    for path in OWN:
        os.makedirs(path, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", path)
    _network()


def forget_kubelet() -> None:
    """Have a kubelet start as on a machine that never had one."""
    run("mount", "-t", "tmpfs", "tmpfs", "/var/lib/kubelet")


def _dev() -> None:
    """Replace /dev by a file system of our own with the same devices: nodes that we make are nobody else's."""
    fresh = Path("/mnt")
    run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(fresh))
    for entry in os.scandir("/dev"):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISCHR(status.st_mode):
            os.mknod(fresh / entry.name, status.st_mode, status.st_rdev)
            (fresh / entry.name).chmod(stat.S_IMODE(status.st_mode))
        elif entry.is_symlink():
            (fresh / entry.name).symlink_to(os.readlink(entry.path))
        elif entry.name in _PASSED_ON:
            (fresh / entry.name).mkdir()
            run("mount", "--rbind", entry.path, str(fresh / entry.name))
    run("mount", "--rbind", str(fresh), "/dev")
    for node in Path("/dev").glob("aosp_binder*"):
        node.unlink()


def _network() -> None:
    """Give the node an address and a default route, which lead nowhere; pods get theirs from the bridge plugin."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "node0", "type", "bridge")
    run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", "node0")
    run("ip", "link", "set", "node0", "up")
    run("ip", "route", "add", "default", "via", "192.0.2.1")


def can_overlay(directory: Path) -> bool:
    """Whether overlayfs works on a directory's file system; if not, containerd copies each layer."""
    names = {name: directory / f"overlay-{name}" for name in ("lower", "upper", "work", "merged")}
    for path in names.values():
        path.mkdir()
    options = f"lowerdir={names['lower']},upperdir={names['upper']},workdir={names['work']}"
    try:
        run("mount", "-t", "overlay", "overlay", "-o", options, str(names["merged"]))
        run("umount", str(names["merged"]))
    except AssertionError:
        return False
    finally:
        for path in names.values():
            shutil.rmtree(path, ignore_errors=True)
    return True
