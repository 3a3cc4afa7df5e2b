"""One cell of the matrix: a combination, and the command that tries it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(StrEnum):
    """What is known about a cell."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused by design"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination.

    It has a command, or a reason for which there is none. With a command and ``refused``, the command shows that the
    plugin refuses the combination.
    """

    name: str
    """Its name in the column: lower case, digits, dots and hyphens."""
    title: str
    """The first column of the page, in Markdown."""
    command: tuple[str, ...] = ()
    """A Python module and its arguments: ``("tests.e2e.kernel", "--kernel", "bullseye")``."""
    expect: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of the versions that the command must report: ``{"Linux": "5.10."}``. A command that ran something
    else fails, so that an option which is silently ignored does not pass. A command that runs two versions of a
    component reports both: ``{"containerd": "1.6. and 2."}``."""
    note: str = ""
    """What a reader has to know besides, in Markdown: for example which items are run."""
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
        if not self.command and not self.refused and not self.not_run:
            raise ValueError(f"cell {self.name}: requires a command, or a reason for which there is none")
        if self.command and self.not_run:
            raise ValueError(f"cell {self.name}: has a command, and a reason for which there is none")
