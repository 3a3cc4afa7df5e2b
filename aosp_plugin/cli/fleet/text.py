"""Renders the document as text: problems, nodes, phones. Everything here is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aosp_plugin.cli.summary import Line, age, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aosp_plugin.cli.fleet.report import Fleet, NodeRow, PhoneRow, Problem

GAP: Final = "  "
_NAMES: Final = frozenset({"NODE", "NAMESPACE", "POD"})
"""Columns of names, whose ends distinguish them: they are shortened in the middle."""
_SHRINK: Final = {"DETAIL": 24, "REASON": 16, "POD": 14, "NODE": 10, "NAMESPACE": 8, "PHONE": 8, "RESOURCE": 10}
"""Columns that may become narrower, and the least width of each."""
_SECONDS_PER_YEAR: Final = 365 * 86400


class Column(NamedTuple):
    """A column of a table."""

    title: str
    right: bool = False


def lines(found: Fleet, *, wide: bool, width: int | None) -> Iterator[Line]:
    """Yield the lines; with a width, tables are made to fit it as far as possible. Free phones are only counted."""
    yield Line(_totals(found), bold=True)
    if found.problems:
        yield from _table(_PROBLEM, (_problem(each, found.time) for each in found.problems), width, "red")
    elif found.complete:
        yield Line("No node has a problem.")
    several = len({row.resource for row in found.nodes if row.resource} | {row.resource for row in found.phones}) > 1
    yield from _table(*_nodes(found, wide=wide, several=several), width)
    yield from _table(*_phones(found, wide=wide, several=several), width, "yellow", _troubled(found))


def _totals(found: Fleet) -> str:
    totals = found.totals
    if not found.nodes and not found.complete:
        return f"{sum(row.count for row in found.phones):,} phones of pods; the nodes are unknown"
    used = "unknown use" if totals.used is None else f"{totals.used:,} used"
    text = f"{totals.phones:,} phones on {totals.nodes:,} nodes: {totals.allocatable:,} allocatable, {used}"
    text += f", {totals.unhealthy:,} unhealthy, {totals.waiting:,} waiting"
    return text


_PROBLEM: Final = tuple(map(Column, ("NODE", "PROBLEM", "AGE", "DETAIL")))


def _problem(problem: Problem, now: float) -> list[str]:
    return [problem.node or "-", problem.kind, _age(now, problem.since), problem.detail]


def _nodes(found: Fleet, *, wide: bool, several: bool) -> tuple[Sequence[Column], Iterator[list[str]]]:
    cells: dict[Column, Callable[[NodeRow], str]] = {
        Column("NODE"): lambda row: row.node if row.ready else f"{row.node} (not ready)",
        Column("PHONES", right=True): lambda row: f"{row.phones:,}",
        Column("ALLOCATABLE", right=True): lambda row: f"{row.allocatable:,}",
        Column("USED", right=True): lambda row: "-" if row.used is None else f"{row.used:,}",
        Column("UNHEALTHY", right=True): lambda row: f"{row.unhealthy:,}",
        Column("PLUGIN"): lambda row: row.plugin,
        Column("AGE"): lambda row: _age(found.time, row.since),
    }
    if several or wide:
        cells[Column("RESOURCE")] = lambda row: row.resource or "-"
    if wide:
        cells |= {
            Column("API"): lambda row: row.api or "-",
            Column("VERSION"): lambda row: row.plugin_version or "-",
            Column("SOURCE"): lambda row: row.source or "-",
            Column("PLUGIN POD"): lambda row: row.plugin_pod or "-",
        }
    return tuple(cells), ([cell(row) for cell in cells.values()] for row in found.nodes)


def _phones(found: Fleet, *, wide: bool, several: bool) -> tuple[Sequence[Column], Iterator[list[str]]]:
    cells: dict[Column, Callable[[PhoneRow], str]] = {
        Column("NAMESPACE"): lambda row: row.namespace or "-",
        Column("POD"): lambda row: row.pod or "-",
        Column("NODE"): lambda row: row.node or "-",
        Column("PHONE"): _phone,
        Column("STATE"): lambda row: row.state,
        Column("AGE"): lambda row: _age(found.time, row.since if row.created is None else row.created),
    }
    if several or wide:
        cells[Column("RESOURCE")] = lambda row: row.resource
    if wide:
        cells[Column("SINCE")] = lambda row: _age(found.time, row.since)
    cells[Column("REASON")] = lambda row: row.reason
    return tuple(cells), ([cell(row) for cell in cells.values()] for row in found.phones if row.state != "free")


def _phone(row: PhoneRow) -> str:
    """Return the IDs of the devices, or how many there are if that is all that is known."""
    if row.devices:
        return ",".join(ranges(row.devices)) if len(row.devices) > 1 else row.devices[0]
    return "-" if row.count == 1 else f"{row.count} phones"


def _troubled(found: Fleet) -> int:
    return sum(row.problem for row in found.phones)


def _age(now: float, since: float | None) -> str:
    if since is None:
        return "-"
    years = (now - since) / _SECONDS_PER_YEAR
    return f"{years:.0f}y" if years >= 2 else age(now, since)  # noqa: PLR2004 - as in kubectl


def _table(
    columns: Sequence[Column],
    rows: Iterator[list[str]],
    width: int | None,
    color: str | None = None,
    colored: int | None = None,
) -> Iterator[Line]:
    """Yield a table with a blank line before it, the first ``colored`` rows in color; nothing if it has no rows."""
    shown = [[_printable(cell) for cell in row] for row in rows]
    if not shown:
        return
    titles = [column.title for column in columns]
    widths = [max(map(len, column)) for column in zip(titles, *shown, strict=True)]
    if width is not None:
        widths = _fitted(titles, widths, width)
    yield Line("")
    yield Line(_row(columns, titles, widths), bold=True)
    for number, row in enumerate(shown):
        yield Line(_row(columns, row, widths), color=color if colored is None or number < colored else None)


def _printable(text: str) -> str:
    """Return one line that does not control the terminal; a container runtime's message may have several."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))


def _row(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        text = cell if len(cell) <= width else _shortened(cell, width, middle=column.title in _NAMES)
        parts.append(text.rjust(width) if column.right else text.ljust(width))
    return GAP.join(parts).rstrip()


def _fitted(titles: Sequence[str], widths: Sequence[int], limit: int) -> list[int]:
    """Return widths that together fit the limit: the widest columns that may shrink become narrower."""
    fitted = list(widths)
    excess = sum(fitted) + len(GAP) * (len(fitted) - 1) - limit
    least = [max(_SHRINK.get(title, width), len(title)) for title, width in zip(titles, fitted, strict=True)]
    while excess > 0:
        room, index = max((width - low, index) for index, (width, low) in enumerate(zip(fitted, least, strict=True)))
        if room <= 0:
            break
        fitted[index] -= 1
        excess -= 1
    return fitted


def _shortened(text: str, width: int, *, middle: bool) -> str:
    if not middle:
        return f"{text[: width - 1]}…"
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
