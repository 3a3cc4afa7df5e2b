"""The cost of a plugin by the number of its devices, as a table and as a plot."""

from __future__ import annotations

import dataclasses
import io
import json
import statistics
from typing import TYPE_CHECKING, Any

from tests.bench import measures
from tests.bench.samples import Samples, summary
from tests.tables import table as text_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.trial import Trial

COUNTS = (1_000, 3_000, 10_000, 30_000, 100_000, 130_000)
BEYOND = 200_000
"""More devices than a message of 4 MiB holds."""


COSTS = (
    ("start, ms", "start", "o"),
    ("memory, MB", "resident", "s"),
    ("hotplug, ms", "hotplug", "^"),
    ("Allocate, ms", "allocate", "D"),
)
"""The plotted costs; markers distinguish the lines besides colours."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The cost of a number of devices; times in milliseconds, sizes in megabytes (10^6 bytes)."""

    devices: int
    listed: int
    """The number of devices in the kubelet's list."""
    message: float
    start: float
    """From the start of the process to the list, the median of three starts."""
    resident: float
    hotplug: float
    """From a change of a device to the message, the median."""
    hotplug_worst: float
    allocate: float
    """For three devices, the median."""


def row(trial: Trial, count: int, rounds: int) -> Row:
    """Measure with ``count`` devices."""
    samples = Samples()
    measures.many([trial], count, 3, samples)
    start, [resident] = samples.of(trial, f"listed_{count}"), samples.of(trial, f"rss_{count}")
    with measures.running([trial], count):
        message = trial.kubelet.messages[-1].data
        measures.hotplugs([trial], count, rounds, samples)
        measures.allocations([trial], 3, 100, samples)
    plugged = [*samples.of(trial, "appears"), *samples.of(trial, "vanishes")]
    hotplug = summary(plugged, 1e3)
    allocate = statistics.median(samples.of(trial, "allocate")) * 1e3
    started = statistics.median(start) * 1e3
    return Row(count, count, len(message) / 1e6, started, resident, hotplug.median, hotplug.worst, allocate)


def beyond(trial: Trial, count: int) -> tuple[int, int, str]:
    """Run with more devices than fit; return the number of listed devices, the message's size, and the log line."""
    trial.devices.fill(count)
    with measures.started(trial):
        message = trial.kubelet.listed(lambda devices: len(devices) > 0)
        listed = len(message.devices)
    line_of_log = next((line for line in trial.log().splitlines() if "truncated" in line), "nothing")
    return listed, len(message.data), line_of_log


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text; times in ms, sizes in MB."""
    cells = [
        [
            f"{row.devices:,}",
            f"{row.message:.2f}",
            *(f"{figure:,.0f}" for figure in (row.start, row.resident, row.hotplug, row.hotplug_worst)),
            f"{row.allocate:.2f}",
        ]
        for row in rows
    ]
    return text_table(("devices", "message", "start", "memory, RSS", "hotplug", "worst hotplug", "Allocate"), cells)


def as_json(rows: Sequence[Row]) -> str:
    """Return the rows as JSON."""
    return json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n"


def read(text: str) -> list[Row]:
    """Return the rows in a file's text."""
    rows: list[dict[str, Any]] = json.loads(text)
    return [Row(**row) for row in rows]


def plot(rows: Sequence[Row]) -> str:
    """Return an SVG with each cost by the number of devices, on logarithmic axes."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and only plots require it
    from matplotlib import pyplot as plt  # noqa: PLC0415
    from matplotlib.ticker import StrMethodFormatter  # noqa: PLC0415

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "growth"  # so that equal rows give equal files
    figure, axes = plt.subplots(figsize=(9, 4.5))
    devices = [row.devices for row in rows]
    for title, cost, mark in COSTS:
        axes.loglog(devices, [getattr(row, cost) for row in rows], marker=mark, label=title)
    axes.set_xticks(devices, [f"{count / 1000:g}k" for count in devices])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("devices")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.15), ncols=len(COSTS), frameon=False)
    output = io.StringIO()
    figure.savefig(output, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return output.getvalue()
