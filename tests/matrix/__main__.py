"""``python -m tests.matrix``: run the compatibility matrix, and write docs/compatibility.md from its results.

Without a command, it runs all cells that have no current result in the cache, which may take hours. It may be
interrupted at any time, and continues with the next cell when it is started again.
"""

import argparse
import datetime
import signal
import sys
from collections.abc import Mapping, Sequence

from tests.e2e.common import cache
from tests.e2e.common.report import say
from tests.matrix import page, results, runner
from tests.matrix.cells import Cell, State, columns
from tests.matrix.cells import cells as all_cells

_LOG_LINES = 60
"""Lines of a failed command's log that ``one`` prints."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of the arguments, and return the exit code: 1 if a cell failed."""
    options = _parse(arguments)
    # As after Ctrl-C, the cell's command ends with this process. .ci/run ends a stage by SIGABRT.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGABRT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda received, _: sys.exit(128 + received))
    cells = all_cells()
    if options.command == "list":
        return _list(cells)
    if options.command == "render":
        return _render(cells)
    if options.command == "one":
        return _one(cells, options.date)
    return _run(_selected(cells, options.column, options.cell), cells, again=options.again)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    choices = ("run", "list", "render", "one")
    texts = "run cells (default); list them; write results.json and the page from the cache; run a cheap one by date"
    parser.add_argument("command", nargs="?", default="run", choices=choices, help=texts)
    parser.add_argument("--column", action="append", default=[], choices=[*columns()], help="only this column")
    parser.add_argument("--cell", action="append", default=[], metavar="COLUMN/NAME", help="only this cell")
    parser.add_argument("--again", action="store_true", help="run cells that have a current result, too")
    today = datetime.datetime.now(datetime.UTC).date()
    parser.add_argument("--date", type=datetime.date.fromisoformat, default=today, help="of `one`: YYYY-MM-DD")
    return parser.parse_args(arguments)


def _selected(cells: Mapping[str, Cell], chosen_columns: list[str], names: list[str]) -> Mapping[str, Cell]:
    """Return the cells that the options name, or all."""
    if unknown := [name for name in names if name not in cells]:
        raise SystemExit(f"unknown cells: {', '.join(unknown)}; `list` prints their names")
    if not chosen_columns and not names:
        return cells
    return {name: cell for name, cell in cells.items() if name in names or name.split("/")[0] in chosen_columns}


def _list(cells: Mapping[str, Cell]) -> int:
    """Print each cell with its state in results.json."""
    known = results.published()
    for name, cell in cells.items():
        say(f"{name:34} {page.state(cell, known.get(name)):18} {cell.command}")
    return 0


def _render(cells: Mapping[str, Cell]) -> int:
    """Write results.json and the page, which another process may be doing, too."""
    with cache.exclusive("matrix-page"):
        results.publish(cells, runner.belongs)
        page.PAGE.write_text(page.render(columns(), results.published()), encoding="utf-8")
    return 0


def _run(selected: Mapping[str, Cell], cells: Mapping[str, Cell], *, again: bool) -> int:
    """Run the selected cells that have no current result, and publish each result at once."""
    failed = []
    for name, cell in selected.items():
        result = results.cached(name, cell)
        if not cell.command:
            say(f"{name}: {page.state(cell, None)}, without a command")
            continue
        if again or not runner.is_current(result):
            say(f"# {name}: python -m {cell.command}")
            result = runner.run(name, cell)
            _render(cells)
        assert result is not None
        say(f"{name}: {result.state}, {result.passed} passed, {len(result.failures)} failed, {result.date}")
        failed += [name] if result.state == State.FAILED else []
    return int(bool(failed))


def cheap_cell(cells: Mapping[str, Cell], date: datetime.date) -> str | None:
    """Return the name of the cheap cell whose turn it is on a date: each one in turn, day by day."""
    cheap = [name for name, cell in cells.items() if cell.cheap]
    return cheap[date.toordinal() % len(cheap)] if cheap else None


def _one(cells: Mapping[str, Cell], date: datetime.date) -> int:
    """Run the cheap cell whose turn it is on a date; results.json and the page stay as they are."""
    name = cheap_cell(cells, date)
    if name is None:
        say("# no cell is cheap")
        return 0
    say(f"# {name}: python -m {cells[name].command}")
    result = runner.run(name, cells[name])
    if result.state != State.PASSED:  # also a cell that skipped everything: a cheap one requires what the others do
        say(runner.last_lines(name, _LOG_LINES))
    say(f"{result.passed} passed, {len(result.failures)} failed, {sum(result.skipped.values())} skipped")
    return int(result.state != State.PASSED)


if __name__ == "__main__":
    sys.exit(main())
