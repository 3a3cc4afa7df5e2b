"""Which part of a report ``aosp-plugin status`` shows, and the lines of ``--check``."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aosp_plugin.cli.status import problem_lines, selected
from aosp_plugin.framework.conditions import Severity
from aosp_plugin.framework.errors import ConfigError
from aosp_plugin.report.document import Problem, Report
from tests.unit.test_summary import EMPTY, NODE, NOW

OF_X = Problem(Severity.WARNING, "missing", "a.io/x", "2 devices missing", "", "", NOW - 60, 12, ("n1", "n2", "n7"))
OF_NODE = Problem(Severity.NOTICE, "polling", "", "Polling", "", "")


def node() -> Report:
    other = replace(EMPTY, name="a.io/y")
    of_y = replace(OF_X, resource="a.io/y", since=None, count=0, devices=())
    return replace(NODE, resources=(EMPTY, other), problems=(OF_X, of_y, OF_NODE))


def test_resource_limits_the_problems_too() -> None:
    report = selected(node(), "a.io/x")
    assert [it.name for it in report.resources] == ["a.io/x"]
    assert report.problems == (OF_X, OF_NODE)
    with pytest.raises(ConfigError, match=r"'a\.io/z' is not served; allowed: a\.io/x, a\.io/y"):
        selected(node(), "a.io/z")


def test_problem_is_one_line() -> None:
    assert list(problem_lines(node(), NOW)) == [
        "warning: a.io/x: 2 devices missing (for 60s): n1, n2, n7 and 9 more",
        "warning: a.io/y: 2 devices missing",
        "notice: node-7: Polling",
    ]
