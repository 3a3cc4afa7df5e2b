"""The cluster's sandbox: namespaces in which control plane and nodes run, and which leave nothing on the machine.

The harness is the first process of mount, PID and network namespaces. When it ends, the kernel ends all other
processes, and removes mounts and network devices. ``/var/lib`` and ``/run`` are file systems of the sandbox. Only
cgroups belong to the machine: all are below one directory for each run, which :func:`enter` removes.

Unlike the sandbox of ``tests/e2e/kubelet``, several may run at a time: the sysctls that a kubelet writes are files of
its node (:mod:`tests.e2e.cluster.boot`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.sandbox import CGROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ADDRESS: Final = "203.0.113.10"
"""The control plane's address, and the nodes' gateway; 203.0.113.0/24 is reserved for documentation (RFC 5737)."""
NETWORK: Final = "203.0.113.0/24"
SERVICES: Final = "198.18.0.0/24"
SERVICE: Final = "198.18.0.1"
"""The service `kubernetes` of pods: on the loopback device of the control plane, so that no kube-proxy is needed."""
BRIDGE: Final = "cluster0"
_UNSHARE: Final = ("--mount", "--pid", "--fork", "--kill-child", "--net", "--propagation", "private", "--mount-proc")


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a Python module as the first process of a new sandbox."""
    return ["unshare", *_UNSHARE, sys.executable, "-m", module, *arguments]


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a sandbox, and wait until all its processes have ended.

    The kernel reaps the first process of a PID namespace after all others (``zap_pid_ns_processes``). If ``unshare``
    were killed, nothing would wait for them.
    """
    while process.poll() is None:
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)  # and then try again: it may not have had a child yet


def enter(module: str, arguments: Sequence[str], *, project: Path, seconds: float) -> int:
    """Run a Python module in a new sandbox, and return its exit code; 1 if it does not end within the time limit."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the context managers exit
    with cgroups() as root:
        process = subprocess.Popen(command(module, [*arguments, "--cgroups", root]), cwd=project)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"not ok - the whole run did not end within {seconds:.0f} s\n")
            return 1
        finally:
            kill(process)


@contextlib.contextmanager
def cgroups() -> Iterator[str]:
    """Yield a new name for a directory of cgroups, and remove the cgroups in it at the end."""
    name = f"aosp-cluster-{os.getpid()}-{time.time_ns() % 10**6}"
    try:
        yield name
    finally:
        remove_cgroups(name)


def remove_cgroups(name: str) -> None:
    """Remove the cgroups below a directory of all hierarchies, whose processes have ended."""
    for top in [*CGROUPS.glob(f"*/{name}"), CGROUPS / name]:
        for path, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def set_up() -> None:
    """Mount the sandbox's file systems and set up its network; called in the sandbox."""
    for path in ("/run", "/var/lib"):
        run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", path)
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{SERVICE}/32", "dev", "lo")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
