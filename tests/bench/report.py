"""The figures with their targets, and their table in Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tests.bench.contestants import EMPTY, OURS
from tests.bench.measures import Medians

NEVER: Final = "never"
"""For a contestant that was asked for a figure in vain."""


class Figure(NamedTuple):
    """A measured quantity, and its targets by number of devices (docs/decisions/0001-envelope.md)."""

    title: str
    unit: str
    limits: Mapping[int, float] = {}
    """In the figure's unit."""
    ratios: Mapping[int, float] = {}
    """To the better empty plugin of the same repetition."""


FIGURES: Final[Mapping[str, Figure]] = {
    "appears": Figure("a device appears, until the kubelet knows", "ms", {1_200: 25, 10_000: 80}),
    "vanishes": Figure("a device vanishes, until the kubelet knows", "ms", {1_200: 25, 10_000: 80}),
    "restart_cleaned": Figure("the kubelet restarts and cleans its directory: all back", "ms", {1_200: 20, 10_000: 40}),
    "restart_replaced": Figure("the kubelet restarts: all devices are back", "ms", {1_200: 20, 10_000: 40}),
    "listed": Figure("start to all devices listed", "ms", ratios={1_200: 1.7, 10_000: 2.0}),
    "allocate": Figure("Allocate of three devices, p50", "ms", ratios={1_200: 1.6, 10_000: 1.6}),
    "rss": Figure("resident memory, everything on", "MB", ratios={1_200: 1.3, 10_000: 1.45}),
    "idle": Figure("CPU time while idle", "ms/s", {1_200: 1, 10_000: 3}),
}


def table(names: Sequence[str], count: int, repetitions: Sequence[Mapping[str, Medians]]) -> str:
    """Return the figures of the contestants ``names`` with ``count`` devices: the median (least to most)."""
    rows = [[f"{count:,} devices", "target", "ratio to empty", *names]]
    for key, figure in FIGURES.items():
        values = {name: [found[key][name] for found in repetitions if name in found.get(key, {})] for name in names}
        ratios = [_ratio(found[key]) for found in repetitions if OURS in found.get(key, {})]
        cells = [_spread(values[name]) or (NEVER if not name.startswith(EMPTY) else "") for name in names]
        rows.append(
            [f"{figure.title}, {figure.unit}", _target(figure, count), _spread(list(filter(None, ratios))), *cells]
        )
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def _ratio(medians: Medians) -> float | None:
    empty = [value for name, value in medians.items() if name.startswith(EMPTY)]
    return medians[OURS] / min(empty) if empty else None


def _target(figure: Figure, count: int) -> str:
    if limit := figure.limits.get(count):
        return f"{limit:g} {figure.unit}"
    ratio = figure.ratios.get(count)
    return f"{ratio:g} x" if ratio else ""


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    median, least, most = (
        f"{value:.3g}" if value < 100 else f"{value:,.0f}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return median if len(values) == 1 else f"{median} ({least} to {most})"
