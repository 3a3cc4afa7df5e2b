"""Processor time and memory of a process, from /proc."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_TICK: Final = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int, *, children: bool = False) -> float:
    """Return the processor time of a process, with ``children`` also of those that have ended. Raises OSError."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11 : 15 if children else 13])) / _TICK


def resident(pid: int, field: str = "VmRSS") -> float:
    """Return the resident memory of a process in MiB; with ``VmHWM``, the most so far."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0
