"""Samples and what is told of them: median, p99 and worst, as a table, as JSON, and two runs beside each other."""

from __future__ import annotations

import collections
import json
import os
import platform
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.bench.trial import Trial

FORMAT = 1


class Figure(NamedTuple):
    """Something that is measured."""

    title: str
    unit: str
    scale: float = 1
    """What a sample is multiplied by to be in that unit."""
    target: str = ""
    """What the design wants of this project's plugin."""
    rate: bool = False
    """Whether more is better, so that the worst is not the greatest and is not told."""


_MEMORY = {
    f"{kind}_{count}": Figure(f"memory at {count:,} devices, {kind.upper()}", "MB", target=target)
    for count, target in ((1_000, ""), (10_000, "under 48"), (100_000, ""))
    for kind in ("rss", "pss")
}

FIGURES: Mapping[str, Figure] = {
    "registered": Figure("start to registered", "ms", 1e3),
    "listed": Figure("start to all devices listed", "ms", 1e3, "under 250"),
    "allocate": Figure("Allocate of 3 devices, one caller", "us", 1e6, "empty handler + 15 %; p99 1,000"),
    "allocate_8": Figure("Allocate, eight callers", "calls/s", rate=True),
    "prefer": Figure("GetPreferredAllocation, all free", "ms", 1e3),
    "appears": Figure("node appears to message", "ms", 1e3, "median 25, worst 100"),
    "vanishes": Figure("node vanishes to message", "ms", 1e3, "under 100"),
    "burst_messages": Figure("burst of 10,000 nodes: messages", "", target="at most 10"),
    "burst_lag": Figure("burst: lag after the last node", "ms", 1e3, "under 300"),
    "burst_processor": Figure("burst: processor time", "ms", 1e3),
    "restart_cleaned": Figure("kubelet restarts, directory cleaned", "ms", 1e3, "under 300"),
    "restart_replaced": Figure("kubelet restarts, socket replaced", "ms", 1e3, "under 300"),
    "idle": Figure("processor time while idle", "ms/s", target="under 1"),
    **_MEMORY,
    "listed_100000": Figure("start to 100,000 devices listed", "ms", 1e3, "under 1,000"),
    "exit": Figure("SIGTERM to exit", "ms", 1e3),
}


class Summary(NamedTuple):
    """What is told of the samples of one figure, in its unit."""

    samples: int
    median: float
    p99: float
    worst: float

    def __str__(self) -> str:
        """Say it in one cell: the median, and where there are several samples the p99 or the worst."""
        if self.samples == 1:
            return _short(self.median)
        far = f"p99 {_short(self.p99)}" if self.samples >= 100 else f"worst {_short(self.worst)}"
        return f"{_short(self.median)} ({far})"


def summary(samples: Sequence[float], scale: float = 1) -> Summary:
    """Return the figures of at least one sample; the p99 of a few samples is their worst."""
    ordered = sorted(sample * scale for sample in samples)
    p99 = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
    return Summary(len(ordered), statistics.median(ordered), p99, ordered[-1])


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Samples:
    """All samples of one run, by contestant and figure."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, list[float]]] = collections.defaultdict(lambda: collections.defaultdict(list))

    def add(self, trial: Trial, key: str, sample: float) -> None:
        """Note a sample: seconds, megabytes or a count."""
        self._of[trial.contestant.name][key].append(sample)

    def of(self, trial: Trial, key: str) -> list[float]:
        """Return the samples of a figure; of all trials of one contestant."""
        return list(self._of[trial.contestant.name][key])

    def run(self, commands: Mapping[str, str]) -> dict[str, Any]:
        """Return the run as it is written to a file; ``commands`` are the contestants' command lines."""
        return {
            "format": FORMAT,
            "machine": machine(),
            "contestants": {
                name: {
                    "command": commands.get(name, ""),
                    "figures": {key: summary(of, FIGURES[key].scale)._asdict() for key, of in figures.items()},
                }
                for name, figures in self._of.items()
            },
        }


def machine() -> dict[str, str | int]:
    """Return what a reader has to know of where the figures come from."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
    }


def as_json(run: Mapping[str, Any]) -> str:
    """Return the text of a run's file."""
    return json.dumps(run, indent=1) + "\n"


def read(text: str) -> dict[str, Any]:
    """Return the run in a file's text. Raises ValueError where it is none."""
    run = json.loads(text)
    if not isinstance(run, dict) or run.get("format") != FORMAT:
        raise ValueError(f"this is no run of format {FORMAT}")
    return run


def _text(cell: Summary | None, figure: Figure) -> str:
    if cell is None:
        return ""
    return _short(cell.median) if figure.rate else str(cell)


def _cell(run: Mapping[str, Any], name: str, key: str) -> Summary | None:
    figures = run["contestants"].get(name, {}).get("figures", {})
    return Summary(**figures[key]) if key in figures else None


def table(run: Mapping[str, Any]) -> Table:
    """Return all contestants of a run beside each other."""
    shown = Table(title="medians, with the p99 of 100 samples or more, else the worst")
    shown.add_column("figure")
    shown.add_column("target")
    for name in run["contestants"]:
        shown.add_column(name, justify="right")
    for key, figure in FIGURES.items():
        cells = [_cell(run, name, key) for name in run["contestants"]]
        if any(cells):
            title = f"{figure.title}, {figure.unit}" if figure.unit else figure.title
            shown.add_row(title, figure.target, *(_text(cell, figure) for cell in cells))
    return shown


def comparison(runs: Sequence[Mapping[str, Any]], against: str) -> Table:
    """Return two runs, the earlier first, beside each other: medians, their ratio, and that of both to ``against``.

    The last is what counts, as the machine may have been another, or busier.
    """
    before, after = runs
    shown = Table(title=f"medians of two runs; the last column: how each stands to {against!r} of its own run")
    for column in ("contestant", "figure", "before", "after", "after/before", "relative"):
        shown.add_column(column, justify="left" if column in {"contestant", "figure"} else "right")
    for name in after["contestants"]:
        for key, figure in FIGURES.items():
            old, new = _cell(before, name, key), _cell(after, name, key)
            if old and new:
                shown.add_row(
                    name,
                    f"{figure.title}, {figure.unit}",
                    _short(old.median),
                    _short(new.median),
                    _ratio(new.median, old.median),
                    _relative(before, after, name, key, against),
                )
    return shown


def _relative(before: Mapping[str, Any], after: Mapping[str, Any], name: str, key: str, against: str) -> str:
    ratios = []
    for run in (before, after):
        own, reference = _cell(run, name, key), _cell(run, against, key)
        if not own or not reference or name == against:
            return ""
        ratios.append(_ratio(own.median, reference.median))
    return " -> ".join(ratios)


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}" if other else "-"
