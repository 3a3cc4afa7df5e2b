"""Debian's systemd as process 1 of a guest, for runtimes with the systemd cgroup driver."""

from __future__ import annotations

import subprocess
from typing import Final

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


def is_up() -> bool:
    """Return whether systemd has started what the guest needs, in the guest."""
    return subprocess.run(["systemctl", "--quiet", "is-active", "basic.target"], check=False).returncode == 0
