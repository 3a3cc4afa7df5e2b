"""``python -m tests.e2e.cluster.storm.render FILE``: the tables of what ``--json`` of the benchmark has written."""

from __future__ import annotations

import argparse
import json
import re
import statistics
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster.figures.results import number
from tests.e2e.common.report import say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Values = Mapping[str, Mapping[str, Sequence[float]]]
    """The values of each round, by row and scene."""

_ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "created to scheduled: median, last, s": ("created to scheduled: median, s", "created to scheduled: last, s"),
    "created to Running: median, last, s": ("created to Running: median, s", "created to Running: last, s"),
    "deleted to gone: median, last, s": ("deleted to gone: median, s", "deleted to gone: last, s"),
    "failures": ("failures",),
    "pods held back by Kubernetes": ("pods held back by Kubernetes, without a call to the plugin",),
    "load average before it": ("load average before it",),
    **{
        f"{rpc}: sum, median, maximum, ms": (f"{rpc}: sum, ms", f"{rpc}: median, ms", f"{rpc}: maximum, ms")
        for rpc in ("GetPreferredAllocation", "Allocate", "PreStartContainer", "NodePrepareResources")
    },
    "**share of the start time, %**": ("plugin's share of the pods' start time, %",),
    "share of the wall time, %": ("plugin's share of the storm's wall time, %",),
    "share of the CPU time, %": ("plugin's share of the cluster's CPU time, %",),
}
"""The rows of the first table, each with the values that it shows."""
_PROGRAM: Final = re.compile(r"CPU of (.+), s")


def storms(values: Values) -> str:
    """Return the table of starts, requests and shares."""
    return _table(values, _ROWS)


def programs(values: Values) -> str:
    """Return the table of the CPU time of each program."""
    return _table(values, {match[1]: (row,) for row in values if (match := _PROGRAM.fullmatch(row))})


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster.storm.render", description=__doc__)
    parser.add_argument("file", type=argparse.FileType())
    options = parser.parse_args()
    values: Values = json.load(options.file)
    say(f"{storms(values)}\n\n{programs(values)}")


def _table(values: Values, rows: Mapping[str, Sequence[str]]) -> str:
    """Return a table in Markdown of those rows that have values: the median of the rounds for each scene."""
    scenes = list(dict.fromkeys(scene for row in values.values() for scene in row))
    lines = [["", *scenes], ["---"] * (1 + len(scenes))]
    for title, shown in rows.items():
        cells = [", ".join(_cell(values.get(row, {}).get(scene, [])) for row in shown) for scene in scenes]
        if any(values.get(row) for row in shown):
            lines.append([title, *("" if set(cell) <= set(", ") else cell for cell in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(rounds: Sequence[float]) -> str:
    return number(statistics.median(rounds)) if rounds else ""


if __name__ == "__main__":
    main()
