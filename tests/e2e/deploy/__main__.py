"""``python -m tests.e2e.deploy``: check deploy/ with the tools and the code that read it.

Prints a line for each item; the exit code is 1 if an item failed. Tools are built once and cached. ``--items core``
leaves out the monitoring, because its tools take more time to build than everything else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.e2e.common import packages
from tests.e2e.common.report import Report, describe
from tests.e2e.deploy import (
    items_cdi,
    items_chart,
    items_distributions,
    items_dra,
    items_inhibition,
    items_kinds,
    items_manifests,
    items_monitoring,
    items_node,
    items_unit,
    parts,
    service,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Group(NamedTuple):
    """Items that require the same parts."""

    name: str
    parts: Sequence[Callable[[], object]]
    items: Sequence[Callable[[], None]]


def _systemd() -> None:
    packages.install(("systemd", "iproute2"))


def _apparmor() -> None:
    packages.install(("apparmor",))


MANIFESTS: Final = (items_manifests, items_chart, items_distributions, items_dra, items_kinds, items_node)
MONITORING: Final = Group(
    "the monitoring",
    (parts.helm, parts.promtool, parts.prometheus, parts.alertmanager, parts.dashboard_checker),
    (*items_monitoring.ITEMS, items_inhibition.fleet_alert_inhibits),
)
GROUPS: Final = (
    Group(
        "the manifests",
        (parts.kustomize, parts.helm, parts.validator, parts.operator_crds),
        [item for module in MANIFESTS for item in module.ITEMS],
    ),
    Group("the CDI specs", (parts.cdi_reader,), items_cdi.ITEMS),
    Group(
        "the profiles for phones",
        (_apparmor,),
        (items_manifests.profile_is_parsed, items_manifests.filter_is_current),
    ),
    MONITORING,
    Group("the systemd unit", (_systemd,), items_unit.ITEMS),
)


def main() -> int:
    """Check the items of each group, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.deploy")
    parser.add_argument("--items", choices=("all", "core"), default="all", help="core: all but the monitoring")
    core = parser.parse_args().items == "core"
    report = Report()
    for group in GROUPS:
        if (group is not MONITORING or not core) and _ready(group, report):
            for item in group.items:
                report.run(" ".join((item.__doc__ or "").split()).removesuffix("."), item)
    try:
        service.check(report)
    except packages.MissingError as error:
        report.skip("the unit under systemd", str(error))
    return report.end()


def _ready(group: Group, report: Report) -> bool:
    """Get the parts of a group, and return whether all are available."""
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
