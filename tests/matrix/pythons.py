"""The column of Python versions: lint, types, layers and all fast tests with each that the package supports."""

from __future__ import annotations

from typing import Final

from hack.pythons import ROOT, supported
from tests.matrix.cell import Cell

CELLS: Final = (
    *(
        Cell(
            name=version,
            title=version,
            command=("hack.pythons", "--get", version),
            expect={"Python": f"{version}."},
            hours=2,
        )
        for version in supported((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ),
    Cell(name="before-3.11", title="before 3.11", refused="pip rejects the package: `requires-python`"),
    Cell(name="newer", title="newer", not_run="expected to work; `make test-pythons` takes it once it is a classifier"),
)
