"""``python -m tests.e2e.deploy``: what deploy/ has, held against the tools and the code that will read it.

Prints a line for each item; the exit code is 1 where one does not hold. Tools are built once, and kept.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.e2e.common import packages
from tests.e2e.common.report import Report, describe
from tests.e2e.deploy import items_chart, items_faults, items_manifests, items_monitoring, items_unit, parts, service

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Group(NamedTuple):
    """Items that need the same parts."""

    name: str
    parts: Sequence[Callable[[], object]]
    items: Sequence[Callable[[], None]]


def _systemd() -> None:
    packages.install(("systemd",))


GROUPS: Final = (
    Group(
        "the manifests",
        (parts.kustomize, parts.helm, parts.validator, parts.operator_crds),
        (*items_manifests.ITEMS, *items_chart.ITEMS),
    ),
    Group("the monitoring", (parts.promtool,), (*items_monitoring.ITEMS, *items_faults.ITEMS)),
    Group("the systemd unit", (_systemd,), items_unit.ITEMS),
)


def main() -> int:
    """Get the parts of each group, prove its items, and return the exit code."""
    report = Report()
    for group in GROUPS:
        if _ready(group, report):
            for item in group.items:
                report.run(" ".join((item.__doc__ or "").split()).removesuffix("."), item)
    try:
        service.prove(report)
    except packages.MissingError as error:
        report.skip("the unit under systemd", str(error))
    return report.end()


def _ready(group: Group, report: Report) -> bool:
    """Get the parts; say what is missing or broken."""
    try:
        for part in group.parts:
            part()
    except packages.MissingError as error:
        report.skip(group.name, str(error))
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        report.not_ok(f"the parts of {group.name} can be built", describe(error))
    else:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
