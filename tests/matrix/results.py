"""Results of cells: a file for each in the cache, and results.json for the page."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.e2e.common import cache
from tests.matrix.cells import Cell, State

FILE: Final = Path(__file__).with_name("results.json")


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    failures: list[str] = []
    skipped: dict[str, int] = {}
    versions: dict[str, str] = {}


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
    temporary.write_bytes(msgspec.json.encode(result))
    temporary.replace(path)


def cached(name: str, cell: Cell) -> Result | None:
    """Return the result of a cell's command in the cache; None if there is none, or only one of another command."""
    path = _path(name) / "result.json"
    if not path.exists():
        return None
    result = msgspec.json.decode(path.read_bytes(), type=Result)
    return result if result.command == cell.command.split() else None


def published() -> dict[str, Result]:
    """Return the results in results.json by the name of the cell."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Result])


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
    text = msgspec.json.format(msgspec.json.encode({name: results[name] for name in sorted(results)}), indent=1)
    FILE.write_bytes(text + b"\n")


def _replaces(new: Result, old: Result) -> bool:
    return new.finished > old.finished and (new.state != State.NOT_RUN or old.state == new.state)
