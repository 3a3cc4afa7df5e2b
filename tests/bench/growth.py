"""How the cost of one plugin grows with its devices: a row for each number of them, as a table and as a plot."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from typing import TYPE_CHECKING, Any

import pygal
from pygal.style import CleanStyle
from rich.table import Table

from tests.bench import measures
from tests.bench.figures import Samples, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.trial import Trial

COUNTS = (1_000, 3_000, 10_000, 30_000, 100_000, 130_000)
BEYOND = 200_000
"""More than a message of 4 MiB holds."""


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
    complaint = next((line for line in trial.said().splitlines() if "left_out" in line), "nothing")
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
    chart = pygal.XY(
        title="What devices cost",
        x_title="devices",
        logarithmic=True,
        legend_at_bottom=True,
        legend_at_bottom_columns=4,
        width=900,
        height=480,
        style=CleanStyle,
        js=[],
        disable_xml_declaration=True,
        x_value_formatter=lambda power: f"{10**power / 1000:.0f}k",
    )
    chart.x_labels = [math.log10(one.devices) for one in rows]
    for title, cost in (
        ("start, ms", "start"),
        ("memory, MB", "resident"),
        ("hotplug, ms", "hotplug"),
        ("Allocate, ms", "allocate"),
    ):
        chart.add(title, [(math.log10(one.devices), getattr(one, cost)) for one in rows])
    return re.sub("<script.*?</script>", "", str(chart.render(is_unicode=True)), flags=re.DOTALL)
