"""The columns of the matrix. Each is a module with ``CELLS``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.matrix.cell import Cell

NAMES: Final = ("kernels", "architectures", "kubelets", "runtimes", "distributions")


def load() -> Mapping[str, tuple[Cell, ...]]:
    """Return the cells of each column. Raises ValueError if two cells of a column have the same name."""
    columns = {name: tuple(importlib.import_module(f"tests.matrix.{name}").CELLS) for name in NAMES}
    for column, cells in columns.items():
        if len({cell.name for cell in cells}) != len(cells):
            raise ValueError(f"column {column}: two cells have the same name")
    return columns


def cells() -> Iterator[tuple[str, Cell]]:
    """Yield each cell with its identifier, such as ``kernels/5.10``."""
    for column, found in load().items():
        for cell in found:
            yield f"{column}/{cell.name}", cell
