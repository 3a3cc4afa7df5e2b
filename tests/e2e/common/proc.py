"""Memory of a process, from /proc."""

from __future__ import annotations

import re
from pathlib import Path


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB. Raises OSError."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0
