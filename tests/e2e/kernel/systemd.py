"""Debian's systemd as process 1 of a guest, for runtimes with the systemd cgroup driver."""

import os
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.e2e.kernel.phones import DIRECTORY, NAMES

INIT: Final = ("/lib/systemd/systemd", "--unit=basic.target")
_UNITS: Final = "/run/systemd/system"
_SEARCHED: Final = ("/run/systemd/system.control", "/run/systemd/transient", _UNITS, "/lib/systemd/system")
BEFORE: Final = f"""
mkdir -p {_UNITS}
ln -s /dev/null {_UNITS}/systemd-tmpfiles-setup.service
export SYSTEMD_UNIT_PATH={":".join(_SEARCHED)}
"""
"""Lines of the script that starts it. That service empties /tmp, which is the machine's; nor is its /etc read.

Without the first two directories, daemon-reload forgets the properties of scopes, the filter of devices among them.
"""

LINKS: Final = Path("/dev/char")
LOSING: Final = ("1.1.3", "1.1.4", "1.1.5", "1.1.6")
"""The versions of runc that leave a device without a link out of the scope."""
CHANGES: Final = ("daemon-reload", "update", "set-property")
"""What makes systemd apply the filter of a scope."""


def is_up() -> bool:
    """Return whether systemd has started what the guest needs, in the guest."""
    return subprocess.run(["systemctl", "--quiet", "is-active", "basic.target"], check=False).returncode == 0


def linked() -> dict[str, str]:
    """Return the binder device that each link leads to."""
    found = {path.name: os.readlink(path) for path in LINKS.glob("*")}
    return {name: target for name, target in found.items() if target.startswith("/run/")}


def numbers(ids: Iterable[str]) -> dict[str, str]:
    """Return the paths of the binder devices of phones by their numbers."""
    return numbers_of(f"{DIRECTORY}/{phone}/{name}" for phone in ids for name in NAMES)


def numbers_of(paths: Iterable[str]) -> dict[str, str]:
    """Return the paths of devices by their numbers."""
    found = {}
    for path in paths:
        status = os.lstat(path)
        assert stat.S_ISCHR(status.st_mode), path
        found[f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"] = path
    return found
