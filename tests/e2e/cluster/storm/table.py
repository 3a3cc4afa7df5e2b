"""The measured values, and the table of them."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Table:
    """Values by row and column; a cell has one value for each round."""

    def __init__(self, columns: Sequence[str]) -> None:
        """``columns`` are their titles."""
        self._columns = columns
        self._rows: dict[str, dict[str, list[float]]] = {}

    def add(self, row: str, column: str, value: float) -> None:
        """Add a value; the row's name says the unit."""
        self._rows.setdefault(row, {}).setdefault(column, []).append(value)

    def __str__(self) -> str:
        """Return the table in Markdown: minimum, median and maximum of each cell's values."""
        lines = [["min / median / max", *self._columns], ["---"] * (1 + len(self._columns))]
        lines += [[row, *(_spread(cells.get(name, [])) for name in self._columns)] for row, cells in self._rows.items()]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "".join(number(value) for value in values)
    return " / ".join(number(value) for value in (min(values), statistics.median(values), max(values)))


def number(value: float) -> str:
    """Return a value as the tables show it."""
    if math.isinf(value):
        return "never"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"
