"""The first program in a guest that is a node: mounts its disk, sets up its network, and runs commands for the host.

``python -m tests.e2e.cluster.guest_start NAME ADDRESS GATEWAY [DIRECTORY...]``: the directories are on the disk, so
they survive a reboot; others are in memory. As process 1 it becomes systemd, and a child runs the commands.
"""

import os
import sys
from pathlib import Path
from typing import Final

from tests.e2e.cluster.remote import Server
from tests.e2e.common.processes import run

LINK: Final = "eth0"
DISK: Final = "/dev/vda"
SYSTEMD: Final = "/lib/systemd/systemd"
_STATE: Final = Path("/run/disk")


def main(name: str, address: str, gateway: str, *directories: str) -> None:
    """Set up the guest, and serve until its end."""
    run("hostname", name)
    run("mount", "--make-rshared", "/")
    _STATE.mkdir()
    run("mount", DISK, str(_STATE))
    for path in directories:
        kept = kept_at(path, _STATE)
        kept.mkdir(exist_ok=True)
        os.makedirs(path, exist_ok=True)
        run("mount", "--bind", str(kept), path)
    os.makedirs("/var/lib/cni", exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", "/var/lib/cni")
    run("ip", "address", "add", f"{address}/24", "dev", LINK)
    run("ip", "link", "set", LINK, "up")
    run("ip", "route", "add", "default", "via", gateway)
    if os.getpid() == 1 and os.fork():
        os.execv(SYSTEMD, (SYSTEMD, "--unit=multi-user.target"))  # noqa: S606
    Server(address).serve_forever()


def kept_at(path: str, disk: Path) -> Path:
    """Return where the content of a directory is on the disk."""
    return disk / path.strip("/").replace("/", "-")


if __name__ == "__main__":
    main(*sys.argv[1:])
