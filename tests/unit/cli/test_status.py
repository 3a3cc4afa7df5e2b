"""What ``aosp-plugin status`` prints: all of a report or a part of it, and the lines of ``--check``."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aosp_plugin.cli.status import age, own_url, problem_lines, selected, summary
from aosp_plugin.framework.conditions import Severity
from aosp_plugin.framework.errors import ConfigError
from aosp_plugin.report.document import (
    Counts,
    DeviceReport,
    Known,
    PodContainer,
    Problem,
    Report,
    ResourceReport,
    State,
)

NOW = 1700000000.0
COUNTS = Counts(total=0, healthy=0, unhealthy=0, allocated=0, free=0, unknown=0, gone=0)
EMPTY = ResourceReport(
    name="a.io/x",
    registered=True,
    since=NOW - 7200,
    kubelet_allocatable=None,
    kubelet_published=None,
    revision=1,
    truncated=0,
    counts=COUNTS,
    devices=(),
)
NODE = Report(
    version="1.2.3", node="node-7", started=1700000000.0, allocations=Known(known=True, problem=""), resources=()
)
PHONE_9 = PodContainer("b", "phone-9", "android")
PHONE_10 = PodContainer("b", "phone-10", "android")


def device(
    device_id: str, state: State, *pods: PodContainer, reason: str = "", detail: str = "", **fields: Any
) -> DeviceReport:
    return DeviceReport(device_id, state, reason, detail, (), (device_id,), pods, **fields)


def text_of(*, known: bool = True, **fields: Any) -> list[str]:
    """Return the lines of one resource; ``known`` is whether the allocations are."""
    report = replace(NODE, allocations=Known(known, ""), resources=(replace(EMPTY, **fields),))
    return summary(report, NOW)[3:]


def test_no_device_counts_as_allocated_or_free_while_allocations_are_unknown() -> None:
    lines = text_of(known=False, counts=replace(COUNTS, total=1, unhealthy=1))
    assert "  1 device: 0 healthy, 1 unhealthy, allocation unknown" in lines


def test_the_devices_are_those_that_pods_have_or_that_are_unhealthy() -> None:
    lines = text_of(
        counts=Counts(total=1234, healthy=1230, unhealthy=4, allocated=29, free=1200, unknown=0, gone=2),
        devices=(
            device("n0", State.ALLOCATED, PHONE_10, since=NOW - 7300),
            device("n1", State.UNHEALTHY, reason="missing", since=NOW - 300),
            device("n2", State.FREE),
            device("n3", State.UNHEALTHY, PHONE_9, PHONE_10, reason="not-binder", detail="not-binder: disk"),
        ),
    )
    assert lines == [
        "a.io/x: registered with the kubelet for 2h",
        "  1,234 devices: 1,230 healthy, 4 unhealthy, 29 allocated (2 gone), 1,200 free",
        "",
        "  DEVICE  STATE      AGE  POD                    REASON",
        "  n0      allocated  2h   b/phone-10",
        "  n1      unhealthy  5m   -                      missing",
        "  n3      unhealthy  -    b/phone-9, b/phone-10  not-binder: disk",
    ]


def test_problems_are_below_the_node_or_their_resource() -> None:
    problems = (
        Problem(Severity.ERROR, "not-registered", "a.io/x", "No kubelet", "", "", NOW - 59),
        Problem(Severity.WARNING, "missing", "a.io/x", "12 devices missing", "", "", None, 12, ("n0", "n1")),
        Problem(Severity.NOTICE, "polling", "", "Polling", "", ""),
    )
    resources = (replace(EMPTY, registered=False), replace(EMPTY, name="a.io/y"))
    assert summary(replace(NODE, problems=problems, resources=resources), NOW)[2:10] == [
        "  notice: Polling",
        "",
        "a.io/x: NOT registered with the kubelet for 2h",
        "  0 devices: 0 healthy, 0 unhealthy, 0 allocated, 0 free",
        "  error: No kubelet (for 59s)",
        "  warning: 12 devices missing: n0, n1 and 10 more",
        "",
        "a.io/y: registered with the kubelet for 2h",
    ]


def test_age_has_one_unit_as_in_kubectl() -> None:
    for seconds, text in ((-5.0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (172800, "2d")):
        assert age(NOW, NOW - seconds) == text


OF_X = Problem(Severity.WARNING, "missing", "a.io/x", "2 devices missing", "", "", NOW - 60, 12, ("n1", "n2", "n7"))
OF_Y = replace(OF_X, resource="a.io/y", since=None, count=0, devices=())
OF_NODE = Problem(Severity.NOTICE, "polling", "", "Polling", "", "")
BOTH = replace(NODE, resources=(EMPTY, replace(EMPTY, name="a.io/y")), problems=(OF_X, OF_Y, OF_NODE))


def test_resource_limits_the_problems_too() -> None:
    report = selected(BOTH, "a.io/x")
    assert [it.name for it in report.resources] == ["a.io/x"]
    assert report.problems == (OF_X, OF_NODE)
    with pytest.raises(ConfigError, match=r"'a\.io/z' is not served; allowed: a\.io/x, a\.io/y"):
        selected(BOTH, "a.io/z")


def test_status_is_found_although_the_file_has_become_invalid(tmp_path: Path) -> None:
    """As in a pod after an update of its ConfigMap that no plugin accepts: its addresses are variables."""
    path = tmp_path / "config.yaml"
    path.write_text("version: v1\nlisten: 127.0.0.1:1\n")
    environment = {"AOSP_PLUGIN_CONFIG": str(path), "AOSP_PLUGIN_LISTEN": "10.0.0.1:9478"}
    assert own_url(environment) == "http://127.0.0.1:9478"
    path.write_text("version: v9\n")
    assert own_url(environment) == "http://127.0.0.1:9478"


def test_problem_is_one_line() -> None:
    assert list(problem_lines(BOTH, NOW)) == [
        "warning: a.io/x: 2 devices missing (for 60s): n1, n2, n7 and 9 more",
        "warning: a.io/y: 2 devices missing",
        "notice: node-7: Polling",
    ]
