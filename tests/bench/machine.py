"""The machine's load. Figures of a machine that is not idle are not those of the plugins."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass
class Load:
    """The load of a repetition."""

    average: float
    """The load average over a minute, before the repetition."""
    others: float = 0.0
    """CPU time of other processes during the repetition, as a share of one processor; also time that the hypervisor
    gave to other machines."""
    seconds: float = 0.0
    """Wall time of the repetition."""

    def __str__(self) -> str:
        """Return the load in one line."""
        return (
            f"load average {self.average:.2f} before; {self.others:.0%} of a processor for others; {self.seconds:.0f} s"
        )


@contextlib.contextmanager
def load() -> Iterator[Load]:
    """Measure the load around a repetition, whose child processes have ended and been waited for at its end."""
    measured = Load(os.getloadavg()[0])
    busy, own, began = _busy_seconds(), _own_seconds(), time.perf_counter()
    yield measured
    measured.seconds = time.perf_counter() - began
    measured.others = max(_busy_seconds() - busy - (_own_seconds() - own), 0.0) / measured.seconds


def _busy_seconds() -> float:
    """Return the busy time of all processors: everything in the first line of /proc/stat but idle and iowait."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, *others = map(int, file.readline().split()[1:9])  # guest is part of user
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Return the CPU time of the benchmark and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
