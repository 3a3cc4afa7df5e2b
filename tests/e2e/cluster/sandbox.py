"""The cluster's sandbox: namespaces in which control plane and nodes run, and which leave nothing on the machine.

The harness is the first process of mount, PID and network namespaces. When it ends, the kernel ends all other
processes, and removes mounts and network devices. ``/var/lib`` and ``/run`` are file systems of the sandbox. Only
cgroups belong to the machine: all are below one directory for each run, which :func:`enter` removes.

Unlike the sandbox of ``tests/e2e/kubelet``, several may run at a time: the sysctls that a kubelet writes are files of
its node (:mod:`tests.e2e.cluster.boot`).
"""

import contextlib
import os
import pickle
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.e2e.common import packages
from tests.e2e.common.processes import run
from tests.e2e.common.report import describe, say
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.sandbox import CGROUPS

ADDRESS: Final = "203.0.113.10"
"""The control plane's address, and the nodes' gateway; 203.0.113.0/24 is reserved for documentation (RFC 5737)."""
SERVICES: Final = "198.18.0.0/24"
SERVICE: Final = "198.18.0.1"
"""The service `kubernetes` of pods: on the loopback device of the control plane, so that no kube-proxy is needed."""
BRIDGE: Final = "cluster0"
_UNSHARE: Final = ("--mount", "--pid", "--fork", "--kill-child", "--net", "--propagation", "private", "--mount-proc")
_MODULE: Final = "tests.e2e.cluster.sandbox"


def main(find: Callable[[], object], inside: Callable[..., int], *arguments: object, seconds: float | None) -> int:
    """Find the parts, and call ``inside`` with them and the arguments as :func:`enter` does; return the exit code."""
    try:
        found = find()
    except packages.MissingError as error:
        say(f"skipped: {error}")
        return int(os.environ.get("E2E_STRICT") == "yes")
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        say(f"ERROR: a part cannot be built: {describe(error)}")
        return 1
    return enter(inside, found, *arguments, seconds=seconds)


def prefix() -> str:
    """Return how the names of this process's temporary directories and directories of cgroups begin."""
    return f"aosp-cluster-{os.getpid()}-"


def enter(inside: Callable[..., int], *arguments: object, seconds: float | None) -> int:
    """Call ``inside(work, cgroups, *arguments)`` as the first process of a new sandbox, and return its result.

    ``inside`` is a function of the program's main module. ``work`` is a temporary directory, ``cgroups`` the name of a
    directory of cgroups; both are removed at the end. The result is 1 if the call does not end within the time limit,
    if there is one.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the context managers exit
    with tempfile.TemporaryDirectory(prefix=prefix(), ignore_cleanup_errors=True) as work, _cgroups() as root:
        call = Path(work, "call.pickle")
        spec = sys.modules["__main__"].__spec__
        assert spec is not None, "the program was not started by its module's name"
        call.write_bytes(pickle.dumps((f"{spec.name}:{inside.__name__}", (Path(work), root, *arguments))))
        process = subprocess.Popen(["unshare", *_UNSHARE, sys.executable, "-m", _MODULE, str(call)], cwd=PROJECT)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            say(f"ERROR: the whole run did not end within {seconds:.0f} s")
            return 1
        finally:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
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


@contextlib.contextmanager
def _cgroups() -> Iterator[str]:
    """Yield a new name for a directory of cgroups, and remove the cgroups of all hierarchies in it at the end."""
    name = f"{prefix()}{time.time_ns() % 10**6}"
    try:
        yield name
    finally:
        for top in [*CGROUPS.glob(f"*/{name}"), CGROUPS / name]:
            for path, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)


def shell_command(process: int) -> str:
    """Return the words that run a command of the machine in the sandbox that this process has entered."""
    return f"nsenter --target $(pgrep --parent $(pgrep --parent {process} unshare)) --mount --pid --net"


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


def _run(call: Path) -> int:
    """Set up the sandbox, and make a call that :func:`enter` has written."""
    name, arguments = pickle.loads(call.read_bytes())  # noqa: S301 - the parent process has written it
    set_up()
    return int(pkgutil.resolve_name(name)(*arguments))


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv[1])))
