"""Results of cells: a file for each in the cache, and results.json for the page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.common import cache
from tests.matrix.cells import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.matrix.cells import Cell

FILE: Final = Path(__file__).with_name("results.json")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the command of a cell reported."""

    state: State
    date: str
    """Of the end, in UTC: 2026-11-22."""
    finished: float
    """The same as seconds since 1970: the later one of two results is published."""
    command: list[str]
    plugin: str
    """The last commit that changed the package, with ``+`` if there are uncommitted changes."""
    sources: str
    """A digest of the package."""
    seconds: int
    passed: int
    failures: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, without those that are empty."""
        return {name: value for name, value in asdict(self).items() if value or name in {"passed", "seconds"}}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Result:
        """Return the result with these fields."""
        return cls(**{**fields, "state": State(fields["state"])})


def directory(name: str) -> Path:
    """Return the directory of a cell in the cache, with its log and its result; create it if it does not exist."""
    path = _path(name)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _path(name: str) -> Path:
    return cache.root() / "matrix" / name


def save(name: str, result: Result) -> None:
    """Keep the result of a cell in the cache."""
    path = directory(name) / "result.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(result.to_json(), indent=1), encoding="utf-8")
    temporary.replace(path)


def cached(name: str, cell: Cell) -> Result | None:
    """Return the result of a cell's command in the cache; None if there is none, or only one of another command."""
    path = _path(name) / "result.json"
    if not path.exists():
        return None
    result = Result.from_json(json.loads(path.read_text(encoding="utf-8")))
    return result if result.command == cell.command.split() else None


def published() -> dict[str, Result]:
    """Return the results in results.json by the name of the cell."""
    fields = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Result.from_json(part) for name, part in fields.items()}


def publish(cells: Mapping[str, Cell], belongs: Callable[[Result], bool]) -> None:
    """Take newer results of the cache over into results.json, and drop those of cells that no longer exist.

    ``belongs`` says whether a result is about the package of this checkout. A command that could not run does not
    replace the result of one that ran.
    """
    results = {
        name: result
        for name, result in published().items()
        if name in cells and result.command == cells[name].command.split()
    }
    for name, cell in cells.items():
        new, old = cached(name, cell), results.get(name)
        if new and belongs(new) and (not old or _replaces(new, old)):
            results[name] = new
    text = json.dumps({name: results[name].to_json() for name in sorted(results)}, indent=1, ensure_ascii=False)
    FILE.write_text(f"{text}\n", encoding="utf-8")


def _replaces(new: Result, old: Result) -> bool:
    return new.finished > old.finished and (new.state != State.NOT_RUN or old.state == new.state)
