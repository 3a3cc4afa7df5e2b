"""docs/compatibility.md: a table for each column, and the text of page.template around them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.matrix.cells import Cell, State
from tests.matrix.results import Result

TEMPLATE: Final = Path(__file__).with_name("page.template")
PAGE: Final = Path(__file__).resolve().parents[2] / "docs/compatibility.md"


def render(columns: Mapping[str, Sequence[Cell]], results: Mapping[str, Result]) -> str:
    """Return the page: the template, with each ``{{column NAME}}`` replaced by the table of that column."""
    text = TEMPLATE.read_text(encoding="utf-8")
    for column, cells in columns.items():
        table = "\n".join([*_table(column, cells, results), *_details(column, cells, results)])
        text = text.replace(f"{{{{column {column}}}}}", table)
    return text


def _table(column: str, cells: Sequence[Cell], results: Mapping[str, Result]) -> Iterator[str]:
    yield "| cell | what | state | tests | date | versions | notes |"
    yield "|---|---|---|---|---|---|---|"
    for cell in cells:
        result = results.get(f"{column}/{cell.name}")
        fields = (f"`{column}/{cell.name}`", cell.title, state(cell, result), *_measured(result), _notes(cell, result))
        yield f"| {' | '.join(field.replace('|', chr(92) + '|') for field in fields)} |"


def state(cell: Cell, result: Result | None) -> State:
    """Return the state of a cell: that of its result, or what the cell says if it has no command."""
    if result:
        return result.state
    return State.REFUSED if cell.refused else State.NOT_RUN


def _measured(result: Result | None) -> tuple[str, str, str]:
    """Return tests, date and versions."""
    if not result:
        return "", "", ""
    total = result.passed + len(result.failures)
    tests = f"{result.passed} of {total}" if total else ""
    versions = ", ".join(f"{name} {value}" for name, value in result.versions.items())
    return tests, result.date, versions


def _notes(cell: Cell, result: Result | None) -> str:
    notes = [cell.note, cell.refused, cell.not_run]
    if result and result.state == State.NOT_RUN:
        notes += result.skipped
    elif result and result.skipped:
        notes.append(f"{sum(result.skipped.values())} skipped")
    elif cell.command and not result:
        notes.append("not run yet")
    return "; ".join(filter(None, notes))


def _details(column: str, cells: Sequence[Cell], results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the failed tests of each cell."""
    for cell in cells:
        result = results.get(f"{column}/{cell.name}")
        if result and result.failures:
            yield f"\nFailed in `{column}/{cell.name}`:\n"
            yield from (f"- `{failure.replace('`', chr(39))}`" for failure in result.failures)
