"""The measured values, and the table of them."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Results:
    """Values by row and driver; a row has one value for each round."""

    def __init__(self, drivers: Sequence[str]) -> None:
        """``drivers`` are the columns."""
        self._drivers = drivers
        self._rows: dict[str, dict[str, list[float]]] = {}

    def add(self, row: str, driver: str, *values: float) -> None:
        """Add values to a row; the row's name says the unit."""
        self._rows.setdefault(row, {}).setdefault(driver, []).extend(values)

    def add_latencies(self, row: str, driver: str, seconds: Sequence[float]) -> None:
        """Add the p50, the p99 and the maximum of one round's latencies, in rows of their own."""
        ordered = sorted(1000 * value for value in seconds)
        self.add(f"{row}: p50, ms", driver, statistics.median(ordered))
        self.add(f"{row}: p99, ms", driver, ordered[max(0, -(-99 * len(ordered) // 100) - 1)])
        self.add(f"{row}: max, ms", driver, ordered[-1])

    def table(self) -> str:
        """Return a table in Markdown: minimum, median and maximum of each row's values."""
        lines = [["min / median / max", *self._drivers], ["---"] * (1 + len(self._drivers))]
        lines += [[row, *(_spread(cells.get(name, [])) for name in self._drivers)] for row, cells in self._rows.items()]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def as_json(self) -> dict[str, Any]:
        """Return all values."""
        return self._rows


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return number(values[0])
    return " / ".join(number(value) for value in (min(values), statistics.median(values), max(values)))


def number(value: float) -> str:
    """Return a value as the tables show it."""
    if math.isinf(value):
        return "never"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"
