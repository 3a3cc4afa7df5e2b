"""The cells of the matrix: combinations, and the commands that try them."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tests.layouts import LAYOUTS, Layout

FILE: Final = Path(__file__).with_name("cells.toml")


class State(StrEnum):
    """What is known about a cell."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused by design"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination.

    It has a command, or a reason for which there is none.
    """

    name: str
    """Its name in the column: lower case, digits, dots and hyphens."""
    title: str
    """The first column of the page, in Markdown."""
    command: str = ""
    """A Python module and its arguments: ``tests.e2e.kernel --kernel bullseye``."""
    expect: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of the versions that the command must report: ``{Linux = "5.10."}``. A command that ran something else
    fails, so that an option which is silently ignored does not pass."""
    note: str = ""
    """What a reader has to know besides, in Markdown: for example which tests are run, and what failures mean."""
    refused: str = ""
    """Why the combination is refused by design, in Markdown."""
    not_run: str = ""
    """Why no command tries it, in Markdown."""
    cheap: bool = False
    """Whether ``.ci/run`` may take it: it runs for a few minutes with warm caches, needs nothing that such a machine
    lacks, and passes."""
    hours: float = 3.0
    """The time limit of the command."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.command, self.refused, self.not_run))) != 1:
            raise ValueError(f"cell {self.name}: requires a command, or a reason for which there is none")


def _of_layout(layout: Layout) -> Cell:
    """Return the cell of a distribution, with the values that it requires and what they render."""
    cdi = " or ".join(f"`{path}`" for path in layout.cdi)
    parts = [f"kubelet in `{layout.root}`", f"CDI files in {cdi} where CDI is on"]
    if layout.selinux:
        parts.append(f"SELinux type `{layout.selinux}`")
    required = f"values `{json.dumps(layout.values)}`" if layout.values else "no values"
    values = f"{required}; rendered and validated: {', '.join(parts)}"
    return Cell(name=layout.name, title=layout.title, note=layout.note, not_run=values)


def columns() -> dict[str, tuple[Cell, ...]]:
    """Return the cells of each column. Raises ValueError if two cells of a column have the same name."""
    document: dict[str, list[dict[str, Any]]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    found = {column: tuple(Cell(**fields) for fields in cells) for column, cells in document.items()}
    found["distributions"] = (*map(_of_layout, LAYOUTS), *found["distributions"])
    for column, cells in found.items():
        if len({cell.name for cell in cells}) != len(cells):
            raise ValueError(f"column {column}: two cells have the same name")
    return found


def cells() -> dict[str, Cell]:
    """Return each cell by its identifier, such as ``kernels/5.10``."""
    return {f"{column}/{cell.name}": cell for column, found in columns().items() for cell in found}
