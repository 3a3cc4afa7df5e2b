"""What plugins answer: a status report, or metrics."""

from __future__ import annotations

import re

import msgspec
import pytest

from aosp_plugin.cli.fleet import plugin_answers
from aosp_plugin.daemon.report import (
    Counts,
    DeviceReport,
    DriverReport,
    Known,
    PodContainer,
    Report,
    ResourceReport,
    State,
)
from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.service.metrics import Metrics, States

COUNTS = Counts(total=2, healthy=1, unhealthy=1, allocated=1, free=0, unknown=0, leaked=0, gone=0)
DEVICES = (
    DeviceReport("phone0", State.UNHEALTHY, "missing", "missing: phone0", (), (), (PodContainer("a", "p", "c"),), 5.0),
    DeviceReport("phone1", State.FREE, "", "", (), (), ()),
)
RESOURCE = ResourceReport(
    name="aosp.io/phone",
    registered=True,
    since=1.0,
    problem="scan failed",
    problem_since=2.0,
    notice="another plugin",
    kubelet_allocatable=1,
    kubelet_published=1,
    expected=3,
    revision=1,
    truncated=0,
    counts=COUNTS,
    devices=DEVICES,
    leaks=(),
    leak_detection="off",
    leaks_known=False,
    leaks_problem="off",
    leaks_scanned=None,
    driver=DriverReport("phone.aosp.io", slices=2, slices_confirmed=1, claims=0),
)


def body(*, known: bool = True) -> bytes:
    """Return the status report of a plugin of this version."""
    report = Report("1.2.3", "n1", 0.0, "inotify", Known(known=known, problem=""), (RESOURCE,))
    return msgspec.json.encode(report)


def test_the_status_report_of_this_version_is_read() -> None:
    answer = plugin_answers.from_status(body())
    assert (answer.source, answer.version) == ("status", "1.2.3")
    (resource,) = answer.resources
    assert (resource.name, resource.healthy, resource.unhealthy) == ("aosp.io/phone", 1, {"missing": 1})
    assert (resource.registered, resource.problem, resource.problem_since) == (True, "scan failed", 2.0)
    assert (resource.kubelet_allocatable, resource.kubelet_published, resource.expected) == (1, 1, 3)
    assert (resource.slices, resource.slices_confirmed, resource.notice) == (2, 1, "another plugin")
    assert resource.devices is not None
    assert [(each.id, each.state, each.reason, each.detail, each.pods, each.since) for each in resource.devices] == [
        ("phone0", "unhealthy", "missing", "missing: phone0", (("a", "p"),), 5.0),
        ("phone1", "free", "", "", (), None),
    ]


def test_what_a_plugin_does_not_know_is_unknown() -> None:
    (resource,) = plugin_answers.from_status(body(known=False)).resources
    assert (resource.allocated, resource.leaked) == (None, None)
    (resource,) = plugin_answers.from_status(body()).resources
    assert (resource.allocated, resource.leaked) == (1, None)


def test_a_report_of_another_version_is_read_as_far_as_possible() -> None:
    old = b'{"resources": [{"name": "a.io/x", "counts": {"healthy": 1}, "devices": [], "new": {}}], "more": 1}'
    (resource,) = plugin_answers.from_status(old).resources
    assert (resource.name, resource.healthy, resource.kubelet_allocatable) == ("a.io/x", 1, None)


@pytest.mark.parametrize("text", [b"", b"<html>", b'{"resources": 1}', b"\xff"])
def test_another_document_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a status report"):
        plugin_answers.from_status(text)


def test_the_metrics_of_this_version_are_read() -> None:
    """The names are those that the plugin really serves."""
    states = States(("missing", "foreign-mount"), allocated=lambda: {"aosp.io/phone": 2}, expected={"aosp.io/phone": 4})
    metrics = Metrics(states)
    observer = metrics.observer("aosp.io/phone")
    devices = (Device("phone0"), Device("phone1"), Device("phone2", reason="missing"))
    observer.published(Snapshot(1, devices), None)
    observer.confirmed(1)
    observer.other_plugins(1)
    answer = plugin_answers.from_metrics(metrics.exposition()[1])
    assert answer.source == "metrics"
    assert answer.version
    (resource,) = answer.resources
    assert (resource.name, resource.healthy, resource.unhealthy) == ("aosp.io/phone", 2, {"missing": 1})
    assert (resource.allocated, resource.expected, resource.kubelet_allocatable) == (2, 4, 1)
    assert (resource.registered, resource.problem) == (False, "not registered with the kubelet")
    assert resource.notice == "1 other plugins of this resource run on this node"
    assert resource.devices is None


def test_the_metrics_of_another_program_are_refused() -> None:
    with pytest.raises(ValueError, match="no metrics of the plugin"):
        plugin_answers.from_metrics(b'go_gc_duration_seconds{quantile="0"} 1.5e-05\n')


@pytest.mark.parametrize("value", ["NaN", "+Inf", "x"])
def test_a_sample_that_is_no_number_is_refused(value: str) -> None:
    body = f'aosp_plugin_devices{{health="healthy",reason="",resource="a.io/x"}} {value}\n'.encode()
    with pytest.raises(ValueError, match=re.escape(value)):
        plugin_answers.from_metrics(body)
