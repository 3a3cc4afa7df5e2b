"""The machine's properties and load. Figures of a machine that is not idle are not those of the plugins."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import time
from typing import TYPE_CHECKING, NamedTuple

import grpc
import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

IDLE_LOAD = 0.5
"""Load average over a minute above which a machine is not idle."""

IDLE_SHARE = 0.1
"""Share of one processor above which other processes disturb the figures."""

SAMPLE_SECONDS = 2.0


class Load(msgspec.Struct):
    """The load of a repetition. The load averages contain the benchmark's own load, ``others`` does not."""

    start: tuple[float, float, float]
    """Load averages over 1, 5 and 15 minutes."""
    end: tuple[float, float, float] = (0.0, 0.0, 0.0)
    others_before: float = 0.0
    """CPU time of all processes while the benchmark waits before the repetition, as a share of one processor."""
    others: float = 0.0
    """CPU time of other processes during the repetition, as a share of one processor; also time that the hypervisor
    gave to other machines."""
    seconds: float = 0.0
    """Wall time of the repetition."""

    def __str__(self) -> str:
        """Return the loads in one line."""
        start, end = (" ".join(f"{average:.2f}" for average in averages) for averages in (self.start, self.end))
        return (
            f"load average {start} at the start, {end} at the end; other processes used {self.others_before:.0%} of "
            f"one processor before and {self.others:.0%} during the repetition of {self.seconds:.0f} s"
        )


class _Processors(NamedTuple):
    """Seconds since the boot, of all processors."""

    busy: float
    at: float


def properties() -> dict[str, str | int]:
    """Return the properties of the machine."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
    }


@contextlib.contextmanager
def load(wait: float = SAMPLE_SECONDS) -> Iterator[Load]:
    """Measure the load around a repetition, whose child processes have ended and been waited for at its end."""
    measured = Load(os.getloadavg())
    before = _processors()
    time.sleep(wait)
    started, own = _processors(), _own_seconds()
    measured.others_before = _share(before, started)
    yield measured
    ended = _processors()
    measured.others = max(_share(started, ended, _own_seconds() - own), 0.0)
    measured.seconds = ended.at - started.at
    measured.end = os.getloadavg()


def warnings(loads: list[Load]) -> list[str]:
    """Return what shows that the machine was not idle; ``loads`` are those of the repetitions so far."""
    found = []
    if loads and loads[0].start[0] > IDLE_LOAD:  # those of later repetitions contain the benchmark's own load
        found.append(f"the load average was {loads[0].start[0]:.2f} before the first repetition")
    for number, measured in enumerate(loads, 1):
        if max(measured.others_before, measured.others) > IDLE_SHARE:
            share = max(measured.others_before, measured.others)
            found.append(f"repetition {number}: other processes used {share:.0%} of one processor")
    return found


def _share(before: _Processors, after: _Processors, own: float = 0.0) -> float:
    return (after.busy - before.busy - own) / (after.at - before.at)


def _processors() -> _Processors:
    """Return the busy time of all processors: everything in the first line of /proc/stat but idle and iowait."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, *others = map(int, file.readline().split()[1:9])  # guest is part of user
    return _Processors((user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK"), time.perf_counter())


def _own_seconds() -> float:
    """Return the CPU time of the benchmark and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
