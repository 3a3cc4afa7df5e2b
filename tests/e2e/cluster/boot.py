"""The first process of a machine: mounts its file systems, sets up its network, and reaps orphans.

Runs in mount, PID, network, UTS and IPC namespaces of its own. ``/dev`` and ``/run`` are new, as after each boot of a
host; ``/var/lib/kubelet`` and ``/var/log`` are directories that survive a reboot.
The sysctls that a kubelet writes, and the boot ID, are files of the machine, so the host's stay as they are.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Final

from tests.e2e.cluster.network import ADDRESS
from tests.e2e.common.processes import run
from tests.e2e.common.sandbox import mount_memory, replace_dev, replace_sysctls

LINK: Final = "eth0"
READY: Final = "ready"


def main(name: str, address: str, directory: str) -> None:
    """Set up the machine, report it on standard output, and wait for the end."""
    # Children of shims that have ended become children of this process.
    run("hostname", name)
    run("mount", "--make-rshared", "/")
    _file_systems(Path(directory))
    replace_sysctls()
    sys.stdin.readline()  # the parent moves the network device into the namespace
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{address}/24", "dev", LINK)
    run("ip", "link", "set", LINK, "up")
    run("ip", "route", "add", "default", "via", ADDRESS)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        signal.pause()


def _file_systems(directory: Path) -> None:
    replace_dev()
    mount_memory("/run", "/var/lib/cni")
    for path, kept in (("/var/lib/kubelet", "kubelet"), ("/var/log", "log")):
        os.makedirs(path, exist_ok=True)
        (directory / kept).mkdir(exist_ok=True)
        run("mount", "--bind", str(directory / kept), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
