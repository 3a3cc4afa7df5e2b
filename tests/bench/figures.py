"""Samples and their summaries: median, p99 and maximum; as a table, as JSON, and as a comparison of two runs."""

from __future__ import annotations

import collections
import json
import os
import platform
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from tests.tables import table as text_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.bench.trial import Trial

FORMAT = 1


class Figure(NamedTuple):
    """A measured quantity."""

    title: str
    unit: str
    scale: float = 1
    """The factor from the sample's unit to this unit."""
    target: str = ""
    """The design target for this project's plugin."""
    rate: bool = False
    """Whether larger values are better; only the median is shown then."""


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
    "appears": Figure("device appears to message", "ms", 1e3, "median 25, worst 100"),
    "vanishes": Figure("device disappears to message", "ms", 1e3, "under 100"),
    "burst_messages": Figure("burst of 10,000 devices: messages", "", target="at most 10"),
    "burst_lag": Figure("burst: lag after the last device", "ms", 1e3, "under 300"),
    "burst_processor": Figure("burst: CPU time", "ms", 1e3),
    "restart_cleaned": Figure("kubelet restarts, directory cleaned", "ms", 1e3, "under 300"),
    "restart_replaced": Figure("kubelet restarts, socket replaced", "ms", 1e3, "under 300"),
    "idle": Figure("CPU time while idle", "ms/s", target="under 1"),
    **_MEMORY,
    "listed_100000": Figure("start to 100,000 devices listed", "ms", 1e3, "under 1,000"),
    "exit": Figure("SIGTERM to exit", "ms", 1e3),
}


class Summary(NamedTuple):
    """The summary of the samples of a figure, in its unit."""

    samples: int
    median: float
    p99: float
    worst: float

    def __str__(self) -> str:
        """Return the median, and for several samples the p99 or the maximum."""
        if self.samples == 1:
            return _short(self.median)
        tail = f"p99 {_short(self.p99)}" if self.samples >= 100 else f"worst {_short(self.worst)}"
        return f"{_short(self.median)} ({tail})"


def summary(samples: Sequence[float], scale: float = 1) -> Summary:
    """Return the summary of one or more samples. The p99 of less than 100 samples is their maximum."""
    ordered = sorted(sample * scale for sample in samples)
    p99 = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
    return Summary(len(ordered), statistics.median(ordered), p99, ordered[-1])


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Samples:
    """All samples of a run, by contestant and figure."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, list[float]]] = collections.defaultdict(
            lambda: collections.defaultdict(list)
        )

    def add(self, trial: Trial, key: str, sample: float) -> None:
        """Add a sample: seconds, megabytes or a count."""
        self._samples[trial.contestant.name][key].append(sample)

    def of(self, trial: Trial, key: str) -> list[float]:
        """Return the samples of a figure, from all trials of a contestant."""
        return list(self._samples[trial.contestant.name][key])

    def run(self, commands: Mapping[str, str]) -> dict[str, Any]:
        """Return the run for a file; ``commands`` are the contestants' command lines."""
        return {
            "format": FORMAT,
            "machine": machine(),
            "contestants": {
                name: {
                    "command": commands.get(name, ""),
                    "figures": {
                        key: summary(samples, FIGURES[key].scale)._asdict() for key, samples in figures.items()
                    },
                }
                for name, figures in self._samples.items()
            },
        }


def machine() -> dict[str, str | int]:
    """Return the properties of the machine."""
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
    """Return the run in a file's text. Raises ValueError for another format."""
    run = json.loads(text)
    if not isinstance(run, dict) or run.get("format") != FORMAT:
        raise ValueError(f"not a run of format {FORMAT}")
    return run


def _text(cell: Summary | None, figure: Figure) -> str:
    if cell is None:
        return ""
    return _short(cell.median) if figure.rate else str(cell)


def _cell(run: Mapping[str, Any], name: str, key: str) -> Summary | None:
    figures = run["contestants"].get(name, {}).get("figures", {})
    return Summary(**figures[key]) if key in figures else None


def table(run: Mapping[str, Any]) -> str:
    """Return a table of all contestants of a run: medians with the p99 of 100 samples or more, else the maximum."""
    rows = []
    for key, figure in FIGURES.items():
        cells = [_cell(run, name, key) for name in run["contestants"]]
        if any(cells):
            title = f"{figure.title}, {figure.unit}" if figure.unit else figure.title
            rows.append([title, figure.target, *(_text(cell, figure) for cell in cells)])
    return text_table(["figure", "target", *run["contestants"]], rows)


def comparison(runs: Sequence[Mapping[str, Any]], against: str) -> str:
    """Return a table that compares the medians of two runs, the earlier one first.

    The last column has the ratios to the contestant ``against`` of the same run, which do not depend on the machine.
    """
    before, after = runs
    rows = []
    for name in after["contestants"]:
        for key, figure in FIGURES.items():
            old, new = _cell(before, name, key), _cell(after, name, key)
            if old and new:
                medians = (_short(old.median), _short(new.median), _ratio(new.median, old.median))
                relative = _relative(before, after, name, key, against)
                rows.append((f"{name}: {figure.title}, {figure.unit}", *medians, relative))
    return text_table(("figure", "before", "after", "after/before", f"relative to {against}"), rows)


def _relative(before: Mapping[str, Any], after: Mapping[str, Any], name: str, key: str, against: str) -> str:
    ratios = []
    for run in (before, after):
        own, reference = _cell(run, name, key), _cell(run, against, key)
        if not own or not reference or name == against:
            return ""
        ratios.append(_ratio(own.median, reference.median))
    return " -> ".join(ratios)


def _ratio(value: float, reference: float) -> str:
    return f"{value / reference:.2f}" if reference else "-"
