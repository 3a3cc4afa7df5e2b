"""The figures that a run measures, and their targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Target(NamedTuple):
    """What this project's plugin should reach: the ratio or the limit, whichever is easier; 0 if there is none."""

    ratio: float = 0
    """To the fastest, or smallest, empty plugin of the same repetition."""
    limit: float = 0
    """In the figure's unit."""


NO_TARGET = Target()


class Figure(NamedTuple):
    """A measured quantity."""

    title: str
    unit: str
    samples: str
    """The key of the samples that it summarizes."""
    scale: float = 1
    """The factor from the samples' unit to this unit."""
    target: Target = NO_TARGET
    statistic: Literal["median", "p99", "worst"] = "median"
    rate: bool = False
    """Whether larger values are better."""


def _memory(count: int, kind: str, ratio: float = 0) -> Figure:
    title = f"memory at {count:,} devices, everything on, {kind.upper()}"
    return Figure(title, "MB", f"{kind}_{count}", target=Target(ratio))


FIGURES: Mapping[str, Figure] = {
    "listed": Figure("start to 10,000 devices listed", "ms", "listed", 1e3, Target(ratio=1.6)),
    "listed_100000": Figure(
        "start to 100,000 devices listed", "ms", "listed_100000", 1e3, Target(ratio=2.5, limit=1000)
    ),
    "registered": Figure("start to registered", "ms", "registered", 1e3),
    "allocate": Figure("Allocate of 3 devices, one caller, p50", "us", "allocate", 1e6, Target(ratio=1.15)),
    "allocate_p99": Figure("Allocate, one caller, p99", "us", "allocate", 1e6, Target(ratio=1.3), "p99"),
    "allocate_8": Figure("Allocate, eight callers", "calls/s", "allocate_8", target=Target(ratio=0.85), rate=True),
    "allocate_processor": Figure("CPU time of an Allocate, eight callers", "us", "allocate_processor", 1e6),
    "prefer": Figure("GetPreferredAllocation, 10,000 free", "ms", "prefer", 1e3, Target(limit=2)),
    "rss_1000": _memory(1_000, "rss"),
    "pss_1000": _memory(1_000, "pss"),
    "rss_10000": _memory(10_000, "rss", ratio=1.15),
    "pss_10000": _memory(10_000, "pss"),
    "rss_100000": _memory(100_000, "rss"),
    "pss_100000": _memory(100_000, "pss"),
    "growth": Figure("memory per device from 10,000 to 100,000, RSS", "bytes", "growth", target=Target(limit=500)),
    "appears": Figure("device appears to message", "ms", "appears", 1e3, Target(limit=20)),
    "appears_worst": Figure("device appears to message, worst", "ms", "appears", 1e3, Target(limit=100), "worst"),
    "vanishes": Figure("device disappears to message", "ms", "vanishes", 1e3, Target(limit=20)),
    "consecutive": Figure("devices appear 150 ms apart: to message", "ms", "consecutive", 1e3, Target(limit=30)),
    "consecutive_worst": Figure(
        "devices appear 150 ms apart: to message, worst", "ms", "consecutive", 1e3, statistic="worst"
    ),
    "beside_flapping": Figure(
        "devices appear beside one that flaps every 50 ms", "ms", "beside_flapping", 1e3, Target(limit=30)
    ),
    "flapping_messages": Figure(
        "a device flaps every 50 ms: messages in 10 s", "", "flapping_messages", target=Target(limit=10)
    ),
    "burst_messages": Figure("burst of 10,000 devices: messages", "", "burst_messages", target=Target(limit=10)),
    "burst_lag": Figure("burst: lag after the last device", "ms", "burst_lag", 1e3, Target(limit=300)),
    "burst_processor": Figure("burst: CPU time", "ms", "burst_processor", 1e3),
    "restart_cleaned": Figure(
        "kubelet restarts, directory cleaned: all devices back", "ms", "restart_cleaned", 1e3, Target(limit=15)
    ),
    "restart_replaced": Figure(
        "kubelet restarts, socket replaced: all devices back", "ms", "restart_replaced", 1e3, Target(limit=15)
    ),
    "idle": Figure("CPU time while idle, 10,000 devices", "ms/s", "idle", target=Target(limit=1)),
    "exit": Figure("SIGTERM to exit", "ms", "exit", 1e3),
}
