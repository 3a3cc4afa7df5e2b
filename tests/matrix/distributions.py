"""The column of Kubernetes distributions."""

from __future__ import annotations

from typing import Final

from tests.matrix.cell import Cell

CELLS: Final = (
    Cell(
        name="kind",
        title="kind, and other nodes in containers",
        not_run="expected to work only if the kernel of the machine below has binder: [quickstart.md](quickstart.md)",
    ),
)
