"""The column of processor architectures."""

from __future__ import annotations

from typing import Final

from tests.matrix.cell import Cell

CELLS: Final = (Cell(name="others", title="others, and 32-bit user space", not_run="nothing known about them"),)
