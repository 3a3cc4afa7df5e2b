"""Sandboxes: namespaces in which a program runs its tests, and which leave nothing on the machine.

A function of the program is the first process of mount, PID and network namespaces. When it ends, the kernel ends all
other processes, and removes mounts and network devices. Only cgroups belong to the machine: all are below one directory
for each run, which :func:`main` removes. So several sandboxes may exist at a time.
"""

import contextlib
import os
import pickle
import pkgutil
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.e2e.common import packages
from tests.e2e.common.processes import children, run
from tests.e2e.common.report import say

CGROUPS: Final = Path("/sys/fs/cgroup")
UNSHARE: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--propagation", "private")
_SYSCTLS: Final = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
"""The sysctls that a kubelet writes when it starts."""
_BOOT_ID: Final = "kernel/random/boot_id"
_BOUND: Final = ("pts", "shm", "mqueue")


def require() -> None:
    """Check that this machine can run a sandbox. Raises MissingError with the reason why it cannot."""
    if not re.search(r"^\S+ /sys/fs/cgroup\S* cgroup2? ", Path("/proc/mounts").read_text(), re.MULTILINE):
        raise packages.MissingError("no cgroups are mounted")
    try:
        run(*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    except AssertionError as error:
        raise packages.MissingError(f"cannot create namespaces: {error}") from error


def main(find: Callable[[], object], inside: Callable[..., int], *arguments: object, seconds: float | None) -> int:
    """Find the parts, call ``inside(work, cgroups, parts, *arguments)`` in a sandbox, and return its result.

    ``inside`` is a function of the program's main module. ``work`` is a temporary directory, ``cgroups`` the name of a
    directory of cgroups; both are removed at the end. The result is 1 if the call does not end within the time limit,
    if there is one.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the context managers exit
    try:
        found = find()
    except packages.MissingError as error:
        say(f"skipped: {error}")
        return int(os.environ.get("E2E_STRICT") == "yes")
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        say(f"ERROR: a part cannot be built: {error!r}")
        return 1
    with tempfile.TemporaryDirectory(prefix=prefix(), ignore_cleanup_errors=True) as work, _cgroups() as root:
        call = Path(work, "call.pickle")
        spec = sys.modules["__main__"].__spec__
        assert spec is not None, "the program was not started by its module's name"
        call.write_bytes(pickle.dumps((f"{spec.name}:{inside.__name__}", (Path(work), root, found, *arguments))))
        process = subprocess.Popen([*UNSHARE, "--mount-proc", sys.executable, "-m", __name__, str(call)])
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            say(f"ERROR: the whole run did not end within {seconds:.0f} s")
            return 1
        finally:
            _kill(process)


def prefix() -> str:
    """Return how the names of this process's temporary directories and directories of cgroups begin."""
    return f"aosp-tests-{os.getpid()}-"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a sandbox, and wait until all its processes have ended.

    The kernel reaps the first process of a PID namespace after all others (``zap_pid_ns_processes``). If ``unshare``
    were killed, nothing would wait for them.
    """
    while process.poll() is None:
        with contextlib.suppress(OSError):
            for child in children(process.pid):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)  # and then try again: it may not have had a child yet


@contextlib.contextmanager
def _cgroups() -> Iterator[str]:
    """Yield a new name for a directory of cgroups, and remove the cgroups of all hierarchies in it at the end."""
    name = f"{prefix()}{time.time_ns() % 10**6}"
    try:
        yield name
    finally:
        for top in [*CGROUPS.glob(f"*/{name}"), CGROUPS / name]:
            remove_directories(top)


def remove_directories(top: Path) -> None:
    """Remove empty directories. A cgroup is one that is busy until its last process is reaped."""
    for path, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def shell_command(process: int) -> str:
    """Return the words that run a command of the machine in the sandbox that this process has entered."""
    return f"nsenter --target $(pgrep --parent $(pgrep --parent {process} unshare)) --mount --pid --net"


def mount_memory(*paths: str) -> None:
    """Mount new file systems in memory, which only root can change: the plugin refuses another /run."""
    for path in paths:
        os.makedirs(path, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", path)


def replace_dev() -> None:
    """Replace /dev by a new file system with the same devices, so that new devices stay in the sandbox."""
    new_dev = Path("/mnt")
    mount_memory(str(new_dev))
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


def replace_sysctls() -> None:
    """Bind a copy over each sysctl that a kubelet writes, and a new boot ID over the kernel's."""
    directory = Path("/run/kernel")
    directory.mkdir()
    # A container with a user namespace may mount proc only if some mount of it has nothing on it.
    mount = directory / "proc"
    mount.mkdir()
    run("mount", "-t", "proc", "proc", str(mount))
    for number, name in enumerate((*_SYSCTLS, _BOOT_ID)):
        target = Path("/proc/sys", name)
        copy = directory / str(number)
        if name == _BOOT_ID:
            copy.write_text(f"{uuid.uuid4()}\n")
        elif target.exists():
            shutil.copyfile(target, copy)
        else:
            continue
        run("mount", "--bind", str(copy), str(target))


def _run(call: Path) -> int:
    """Make a call that :func:`main` has written."""
    name, arguments = pickle.loads(call.read_bytes())  # noqa: S301 - the parent process has written it
    return int(pkgutil.resolve_name(name)(*arguments))


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv[1])))
