"""A run as Markdown: ratios to the empty plugin first, then medians and spreads. Also the tables of the documents."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.bench import machine
from tests.bench.contestants import EMPTY, OURS
from tests.bench.figures import FIGURES
from tests.bench.run import failed, ratios, reached, spread, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.bench.figures import Figure
    from tests.bench.run import Run, Spread

NEVER = "never"
"""For a contestant that was asked for a figure in vain."""

README = ("appears", "restart_cleaned", "allocate", "rss_10000")
"""The figures of the README's table."""

HEAD, SUMMARY, RATIOS, FIGURES_TABLE = "run", "targets", "ratios", "figures"


def report(run: Run) -> str:
    """Return everything about a run."""
    return "\n\n".join([conditions(run), targets(run), ratio_table(run), figure_table(run), *failures(run)]) + "\n"


def conditions(run: Run) -> str:
    """Return in sentences how the run was made, and the load."""
    properties = run.machine
    count = len(run.repetitions)
    repetitions = f"{count} {'repetition' if count == 1 else 'repetitions'}"
    rounds = " with few rounds (`--quick`)" if run.quick else ""
    versions = f"Linux {properties['kernel']}, Python {properties['python']}, grpcio {properties['grpcio']}"
    lines = [f"{properties['processors']} processors, {versions}; {repetitions}{rounds}.", ""]
    lines += [f"- repetition {number}: {repetition.load}" for number, repetition in enumerate(run.repetitions, 1)]
    warnings = machine.warnings([repetition.load for repetition in run.repetitions])
    lines += [f"- **The machine was not idle**: {warning}." for warning in warnings]
    return "\n".join(lines)


def targets(run: Run) -> str:
    """Return which targets are reached and which are missed."""
    rows = []
    for figure in FIGURES.values():
        if verdict(run, figure):
            ratio, value = (spread(kind(run, OURS, figure)) for kind in (ratios, values))
            rows.append(
                [figure.title, target(figure), _cell(ratio, "x"), _cell(value, figure.unit), verdict(run, figure)]
            )
    return markdown(["target", "", "ratio to the empty plugin", OURS, ""], rows)


def ratio_table(run: Run) -> str:
    """Return the ratios of all other contestants to the best empty plugin."""
    names = [name for name in run.commands if not name.startswith(EMPTY)]

    def cells(figure: Figure) -> list[str]:
        return [_cell(spread(ratios(run, name, figure)), "x") or _missing(run, name, figure) for name in names]

    comparable = [figure for figure in FIGURES.values() if spread(ratios(run, OURS, figure))]
    return _table("ratio to the empty plugin", names, comparable, cells)


def figure_table(run: Run) -> str:
    """Return the medians and spreads of all contestants."""
    names = list(run.commands)

    def cells(figure: Figure) -> list[str]:
        return [_cell(spread(values(run, name, figure))) or _missing(run, name, figure) for name in names]

    return _table("median (least to most)", names, [figure for figure in FIGURES.values() if any(cells(figure))], cells)


def failures(run: Run) -> list[str]:
    """Return a list of what a contestant was asked for in vain; empty if there is nothing."""
    found: dict[str, int] = {}
    for repetition in run.repetitions:
        for name, by_key in repetition.failures.items():
            for key, error in by_key.items():
                line = f"- {name}, `{key}`: {error}"
                found[line] = found.get(line, 0) + 1
    return ["\n".join(f"{line} ({count} times)" for line, count in found.items())] if found else []


def readme_table(run: Run) -> str:
    """Return the README's table: medians of this plugin and of its peers."""
    peers = [name for name in run.commands if name != OURS and not name.startswith(EMPTY) and name != "before"]
    figures = [FIGURES[key] for key in README if spread(values(run, OURS, FIGURES[key]))]
    rows = [[figure.title, *(_median(run, name, figure) for name in (OURS, *peers))] for figure in figures]
    return markdown(["", "this plugin", *peers], rows)


def target(figure: Figure) -> str:
    """Return the target in words."""
    sign = "at least " if figure.rate else ""
    ratio = f"{sign}{figure.target.ratio:g} x" if figure.target.ratio else ""
    limit = f"{short(figure.target.limit)} {figure.unit}".strip() if figure.target.limit else ""
    return " or ".join(filter(None, (limit, ratio)))


def verdict(run: Run, figure: Figure) -> str:
    """Return whether the target is reached; empty without a target or figure."""
    if not target(figure) or not (results := reached(run, figure)):
        return ""
    *repetitions, overall = results
    agreeing = repetitions.count(overall)
    word = "reached" if overall else "**missed**"
    return word if agreeing == len(repetitions) else f"{word} in {agreeing} of {len(repetitions)}"


def insert(document: str, name: str, text: str) -> str:
    """Return the document with ``text`` between the comments that mark the place ``name``. Raises ValueError."""
    start, end = f"<!-- bench: {name} -->", "<!-- bench: end -->"
    pattern = re.compile(re.escape(start) + r"\n.*?" + re.escape(end), re.DOTALL)
    if not pattern.search(document):
        raise ValueError(f"the document has no {start}")
    return pattern.sub(lambda _match: f"{start}\n{text}\n{end}", document)


def fill_benchmark(document: str, run: Run) -> str:
    """Return docs/benchmark.md with the results of the run. Raises ValueError if a place is missing."""
    parts = {HEAD: conditions, SUMMARY: targets, RATIOS: ratio_table, FIGURES_TABLE: figure_table}
    for name, part in parts.items():
        document = insert(document, name, part(run))
    return document


def fill_readme(document: str, run: Run) -> str:
    """Return the README with the results of the run. Raises ValueError if the place is missing."""
    return insert(document, "summary", readme_table(run))


def short(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in lines)


def _table(
    title: str, names: Sequence[str], figures: Sequence[Figure], cells: Callable[[Figure], Sequence[str]]
) -> str:
    rows = [
        [f"{figure.title}, {figure.unit}" if figure.unit else figure.title, target(figure), *cells(figure)]
        for figure in figures
    ]
    return markdown([title, "target", *names], rows)


def _missing(run: Run, name: str, figure: Figure) -> str:
    return NEVER if failed(run, name, figure) else ""


def _median(run: Run, name: str, figure: Figure) -> str:
    found = spread(values(run, name, figure))
    return f"{short(found.median)} {figure.unit}".strip() if found else _missing(run, name, figure)


def _cell(found: Spread | None, unit: str = "") -> str:
    """Return the median, and the least and the most if there are several values."""
    if found is None:
        return ""
    text = f"{short(found.median)} {unit}".strip()
    return text if found.values == 1 else f"{text} ({short(found.least)} to {short(found.most)})"
