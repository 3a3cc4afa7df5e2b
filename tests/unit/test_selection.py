"""Which part of a report ``aosp-plugin status`` shows, and the lines of ``--check``."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aosp_plugin.cli.status import selected
from aosp_plugin.cli.summary import problem_lines
from aosp_plugin.framework.errors import ConfigError
from aosp_plugin.report.document import Counts, PodContainer, Problem, Report, Severity, State
from tests.unit.test_summary import EMPTY, LEAK, NODE, NOW, device

GAME, SHOP = PodContainer("games", "phone-1", "android"), PodContainer("shop", "phone-1", "android")
DEVICES = (
    device("n0", State.ALLOCATED, GAME),
    device("n1", State.LEAKED, SHOP),
    device("n2", State.UNHEALTHY, GAME, reason="missing"),
    device("n3", State.UNHEALTHY, reason="missing"),
    device("n4", State.FREE),
)
COUNTS = Counts(total=5, healthy=3, unhealthy=2, allocated=3, free=1, unknown=0, leaked=1, gone=0)
OF_X = Problem(Severity.WARNING, "missing", "a.io/x", "2 devices missing", "", "", NOW - 60, 12, ("n1", "n2", "n7"))
OF_NODE = Problem(Severity.NOTICE, "polling", "", "Polling", "", "")


def node() -> Report:
    resource = replace(EMPTY, devices=DEVICES, leaks=(LEAK, replace(LEAK, binder_device="n9")), counts=COUNTS)
    other = replace(EMPTY, name="a.io/y")
    of_y = replace(OF_X, resource="a.io/y", since=None, count=0, devices=())
    return replace(NODE, resources=(resource, other), problems=(OF_X, of_y, OF_NODE))


@pytest.mark.parametrize(
    ("conditions", "ids"),
    [
        ({}, "n0 n1 n2 n3 n4"),
        ({"namespace": "games"}, "n0 n2"),
        ({"pod": "phone-1"}, "n0 n1 n2"),
        ({"pod": "phone-1", "namespace": "shop"}, "n1"),
        ({"unhealthy": True}, "n1 n2 n3"),
        ({"unhealthy": True, "namespace": "games"}, "n2"),
        ({"pod": "other"}, ""),
    ],
)
def test_conditions_combine(conditions: dict[str, Any], ids: str) -> None:
    """Counts do not change with them."""
    resource = selected(node(), **conditions).resources[0]
    assert [it.id for it in resource.devices] == ids.split()
    assert resource.counts == COUNTS


def test_leaks_are_those_of_the_selected_devices() -> None:
    assert len(selected(node()).resources[0].leaks) == 2
    assert [it.binder_device for it in selected(node(), namespace="shop").resources[0].leaks] == ["n1"]
    assert selected(node(), namespace="games").resources[0].leaks == ()


def test_resource_limits_the_problems_too() -> None:
    report = selected(node(), resource="a.io/x")
    assert [it.name for it in report.resources] == ["a.io/x"]
    assert report.problems == (OF_X, OF_NODE)
    with pytest.raises(ConfigError, match=r"'a\.io/z' is not served; allowed: a\.io/x, a\.io/y"):
        selected(node(), resource="a.io/z")


def test_problem_is_one_line() -> None:
    assert list(problem_lines(node(), NOW)) == [
        "warning: a.io/x: 2 devices missing (for 60s): n1..2, n7 and 9 more",
        "warning: a.io/y: 2 devices missing",
        "notice: node-7: Polling",
    ]
