"""How the cost of one plugin grows with its devices: a row for each number of them, as a table and as a plot."""

from __future__ import annotations

import dataclasses
import io
import json
import statistics
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tests.bench import measures
from tests.bench.figures import Samples, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.trial import Trial

COUNTS = (1_000, 3_000, 10_000, 30_000, 100_000, 130_000)
BEYOND = 200_000
"""More than a message of 4 MiB holds."""


COSTS = (
    ("start, ms", "start", "o"),
    ("memory, MB", "resident", "s"),
    ("hotplug, ms", "hotplug", "^"),
    ("Allocate, ms", "allocate", "D"),
)
"""What is plotted: told apart by marks as well as by colours."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What so many devices cost; times in milliseconds, memory in megabytes (10^6 bytes)."""

    devices: int
    listed: int
    """How many of them the kubelet was told of."""
    message: float
    start: float
    """From the start of the process to the list, the median of three."""
    resident: float
    hotplug: float
    """From a node that appears or vanishes to the message: the median."""
    hotplug_worst: float
    allocate: float
    """Of three devices: the median."""


def row(trial: Trial, count: int, rounds: int) -> Row:
    """Measure with so many devices."""
    samples = Samples()
    measures.many([trial], count, 3, samples)
    start = samples.of(trial, f"listed_{count}")
    with measures.running([trial], count):
        message = trial.kubelet.messages[-1].data
        resident = trial.memory().resident
        measures.hotplugs([trial], count, rounds, samples)
        measures.allocations([trial], 3, 100, samples)
    plugged = [*samples.of(trial, "appears"), *samples.of(trial, "vanishes")]
    hotplug = summary(plugged, 1e3)
    allocate = statistics.median(samples.of(trial, "allocate")) * 1e3
    started = statistics.median(start) * 1e3
    return Row(count, count, len(message) / 1e6, started, resident, hotplug.median, hotplug.worst, allocate)


def beyond(trial: Trial, count: int) -> tuple[int, int, str]:
    """Have more devices than fit; return how many were told of in how many bytes, and what the log says of it."""
    trial.nodes.fill(count)
    with measures.started(trial):
        message = trial.kubelet.listed(lambda devices: len(devices) > 0)
        told = len(message.devices)
    complaint = next((line for line in trial.said().splitlines() if "truncated" in line), "nothing")
    return told, len(message.data), complaint


def table(rows: Sequence[Row]) -> Table:
    """Return the rows for people."""
    shown = Table(title="times in ms, memory in MB")
    for title in ("devices", "message", "start", "memory, RSS", "hotplug", "worst hotplug", "Allocate"):
        shown.add_column(title, justify="right")
    for one in rows:
        figures = (one.start, one.resident, one.hotplug, one.hotplug_worst)
        shown.add_row(
            f"{one.devices:,}", f"{one.message:.2f}", *(f"{figure:,.0f}" for figure in figures), f"{one.allocate:.2f}"
        )
    return shown


def as_json(rows: Sequence[Row]) -> str:
    """Return the text of a file that ``read`` reads."""
    return json.dumps([dataclasses.asdict(one) for one in rows], indent=1) + "\n"


def read(text: str) -> list[Row]:
    """Return the rows in a file's text."""
    rows: list[dict[str, Any]] = json.loads(text)
    return [Row(**one) for one in rows]


def plot(rows: Sequence[Row]) -> str:
    """Return an SVG: each cost over the devices, both by powers of ten."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and is for this alone
    from matplotlib import pyplot as plt  # noqa: PLC0415
    from matplotlib.ticker import StrMethodFormatter  # noqa: PLC0415

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "growth"  # so that equal rows make an equal file
    figure, axes = plt.subplots(figsize=(9, 4.5))
    devices = [one.devices for one in rows]
    for title, cost, mark in COSTS:
        axes.loglog(devices, [getattr(one, cost) for one in rows], marker=mark, label=title)
    axes.set_xticks(devices, [f"{count / 1000:g}k" for count in devices])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("devices")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.15), ncols=len(COSTS), frameon=False)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return drawn.getvalue()
