"""Renders the document as text: problems, nodes, phones. Everything here is pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from kubectl_phones.report import Fleet, NodeRow, PhoneRow, Problem

_NUMBERS: Final = frozenset({"PHONES", "ALLOCATABLE", "USED", "UNHEALTHY"})
"""Columns that are aligned to the right."""
_UNITS: Final = (("y", 365 * 86400), ("d", 86400), ("h", 3600), ("m", 60))


def lines(found: Fleet) -> Iterator[str]:
    """Yield the lines."""
    yield _totals(found)
    if found.complete and not found.problems:
        yield "No node has a problem."
    yield from _table([_problem(each, found.time) for each in found.problems])
    yield from _table([_node(row, found.time) for row in found.nodes])
    yield from _table([_phone(row, found.time) for row in found.phones])


def _totals(found: Fleet) -> str:
    totals = found.totals
    if not found.nodes and not found.complete:
        return f"{sum(row.count for row in found.phones):,} phones of pods; the nodes are unknown"
    used = "unknown use" if totals.used is None else f"{totals.used:,} used"
    text = f"{totals.phones:,} phones on {totals.nodes:,} nodes: {totals.allocatable:,} allocatable, {used}"
    return f"{text}, {totals.unhealthy:,} unhealthy, {totals.waiting:,} waiting"


def _problem(problem: Problem, now: float) -> dict[str, str]:
    """Return the cells of a problem by the titles of their columns."""
    age = _age(now, problem.since)
    return {"NODE": problem.node or "-", "PROBLEM": problem.kind, "AGE": age, "DETAIL": problem.detail}


def _node(row: NodeRow, now: float) -> dict[str, str]:
    return {
        "NODE": row.node if row.ready else f"{row.node} (not ready)",
        "PHONES": f"{row.phones:,}",
        "ALLOCATABLE": f"{row.allocatable:,}",
        "USED": "-" if row.used is None else f"{row.used:,}",
        "UNHEALTHY": f"{row.unhealthy:,}",
        "PLUGIN": row.plugin,
        "AGE": _age(now, row.since),
        "RESOURCE": row.resource or "-",
    }


def _phone(row: PhoneRow, now: float) -> dict[str, str]:
    return {
        "NAMESPACE": row.namespace or "-",
        "POD": row.pod or "-",
        "NODE": row.node or "-",
        "PHONE": ",".join(row.devices) or ("-" if row.count == 1 else f"{row.count} phones"),
        "STATE": row.state,
        "AGE": _age(now, row.since if row.created is None else row.created),
        "RESOURCE": row.resource,
        "REASON": row.reason,
    }


def _age(now: float, since: float | None) -> str:
    """Return an age as ``kubectl get`` shows it: 12s, 5m, 3h, 2d, 3y."""
    if since is None:
        return "-"
    seconds = max(0, int(now - since))
    return next((f"{seconds // length}{unit}" for unit, length in _UNITS if seconds >= 2 * length), f"{seconds}s")


def _table(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """Yield a table with a blank line before it; nothing if it has no rows. All rows have the same titles."""
    if not rows:
        return
    titles = list(rows[0])
    cells = [[printable(cell) for cell in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    yield ""
    for row in (titles, *cells):
        aligned = [
            cell.rjust(width) if title in _NUMBERS else cell.ljust(width)
            for title, cell, width in zip(titles, row, widths, strict=True)
        ]
        yield "  ".join(aligned).rstrip()


def printable(text: str) -> str:
    """Return one line that does not control the terminal; a container runtime's message may have several."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))
