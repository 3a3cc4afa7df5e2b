"""A sandbox of namespaces, so that the kubelet can use its compiled-in paths and nothing is left on the machine.

The harness runs in mount, PID and network namespaces of its own. In them ``/dev``, ``/run``, ``/var/log``,
``/var/lib/kubelet`` and ``/var/lib/cni`` are new file systems in memory; ``/dev`` has copies of the machine's devices.
When the first process ends, the kernel ends all others and removes the mounts. Sysctls and cgroups are shared with the
machine; :func:`enter` restores them.
"""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.common import cache
from tests.e2e.common.processes import run

OWN: Final = ("/run", "/var/log", "/var/lib/kubelet", "/var/lib/cni")
SYSCTLS: Final = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
"""The sysctls that a kubelet writes when it starts."""
NODE_ADDRESS: Final = "192.0.2.10"
CGROUPS: Final = Path("/sys/fs/cgroup")
_UNSHARE: Final = ("--mount", "--pid", "--fork", "--kill-child", "--net", "--propagation", "private")
_BOUND: Final = ("pts", "shm", "mqueue")


def problem() -> str:
    """Return the reason why this machine cannot run a sandbox, or ""."""
    if not re.search(r"^\S+ /sys/fs/cgroup\S* cgroup2? ", Path("/proc/mounts").read_text(), re.MULTILINE):
        return "no cgroups are mounted"
    try:
        run("unshare", *_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    except AssertionError as error:
        return f"cannot create namespaces: {error}"
    return ""


def enter(module: str, arguments: Sequence[str], *, project: Path, seconds: float) -> int:
    """Run a Python module in the sandbox as its first process, and return its exit code."""
    command = ("unshare", *_UNSHARE, "--mount-proc", sys.executable, "-m", module, *arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the context managers exit
    with cache.exclusive("sandbox"), _directories(), _sysctls(), _cgroups():
        process = subprocess.Popen(command, cwd=project)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"# the whole run did not end within {seconds:.0f} s\n")
            return 1
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _directories() -> Iterator[None]:
    """Create the missing mount points, and remove them again."""
    missing = [path for path in OWN if not os.path.isdir(path)]
    for path in missing:
        os.makedirs(path)
    try:
        yield
    finally:
        for path in reversed(missing):
            os.rmdir(path)


@contextlib.contextmanager
def _sysctls() -> Iterator[None]:
    """Restore the sysctls that the kubelet writes."""
    before = {name: Path("/proc/sys", name).read_text() for name in SYSCTLS}
    try:
        yield
    finally:
        for name, value in before.items():
            Path("/proc/sys", name).write_text(value)


@contextlib.contextmanager
def _cgroups() -> Iterator[None]:
    """Remove the containers' cgroups, except cgroups that existed before."""
    before = set(_container_cgroups())
    try:
        yield
    finally:
        for top in set(_container_cgroups()) - before:
            for path, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)


def _container_cgroups() -> Iterator[Path]:
    """Yield the parents of the cgroups of containerd's and CRI-O's containers."""
    for path, names, _ in os.walk(CGROUPS):  # which skips what is removed meanwhile
        yield from (Path(path, name) for name in {"k8s.io", "crio"}.intersection(names))


def set_up(*, devices: bool = True, own: Sequence[str] = OWN) -> None:
    """Mount the sandbox's file systems and set up its network; called in it.

    ``devices``: also a /dev of its own. ``own`` are the directories that are new file systems in memory.
    """
    run("mount", "--make-rshared", "/")
    if devices:
        replace_dev()
    for path in own:
        os.makedirs(path, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", path)  # the plugin refuses a /run that others change
    _network()


def hide_unified_cgroups() -> None:
    """Unmount the cgroup v2 hierarchy of a machine that also has v1: crun refuses to run with both."""
    if os.path.ismount(CGROUPS / "unified"):
        run("umount", str(CGROUPS / "unified"))


def reset_kubelet() -> None:
    """Mount an empty file system over the kubelet's directory."""
    run("mount", "-t", "tmpfs", "tmpfs", "/var/lib/kubelet")


def replace_dev() -> None:
    """Replace /dev by a new file system with the same devices, so that new devices stay in the sandbox."""
    new_dev = Path("/mnt")
    run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(new_dev))
    for entry in os.scandir("/dev"):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISCHR(status.st_mode):
            os.mknod(new_dev / entry.name, status.st_mode, status.st_rdev)
            (new_dev / entry.name).chmod(stat.S_IMODE(status.st_mode))
        elif entry.is_symlink():
            (new_dev / entry.name).symlink_to(os.readlink(entry.path))
        elif entry.name in _BOUND:
            (new_dev / entry.name).mkdir()
            run("mount", "--rbind", entry.path, str(new_dev / entry.name))
    run("mount", "--rbind", str(new_dev), "/dev")
    for path in Path("/dev").glob("aosp_binder*"):
        path.unlink()


def _network() -> None:
    """Give the node an address and a default route without a network behind them; pods use the bridge plugin."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "node0", "type", "bridge")
    run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", "node0")
    run("ip", "link", "set", "node0", "up")
    run("ip", "route", "add", "default", "via", "192.0.2.1")


def can_overlay(directory: Path) -> bool:
    """Return whether overlayfs works on a directory's file system; if not, containerd copies each layer."""
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
