"""The column of Kubernetes distributions: what the chart renders for their layouts. None of them has been run."""

from __future__ import annotations

import json
from typing import Final

from tests.layouts import LAYOUTS, Layout
from tests.matrix.cell import Cell


def _cell(layout: Layout) -> Cell:
    """Return the cell of a distribution, with the values that it requires and what they render."""
    cdi = " or ".join(f"`{path}`" for path in layout.cdi)
    parts = [f"kubelet in `{layout.root}`", f"CDI files in {cdi} where CDI is on"]
    if layout.selinux:
        parts.append(f"SELinux type `{layout.selinux}`")
    required = f"values `{json.dumps(layout.values)}`" if layout.values else "no values"
    values = f"{required}; rendered and validated: {', '.join(parts)}"
    return Cell(name=layout.name, title=layout.title, note=layout.note, not_run=values)


CELLS: Final = (
    *map(_cell, LAYOUTS),
    Cell(
        name="kind",
        title="kind, and other nodes in containers",
        not_run="expected to work only if the kernel of the machine below has binder: [quickstart.md](quickstart.md)",
    ),
)
