"""The metrics for Prometheus."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.observer import Repaired
from aosp_plugin.framework.service.metrics import CODES, Metrics, ResourceMetrics, memory_limit
from aosp_plugin.report.leaks import Leaks
from aosp_plugin.report.resource_report import LeakDetectionState
from tests.reports import complete_metrics, state_metrics
from tests.support import Clock

A, B = "aosp.io/a", "aosp.io/b"
REASONS = ("missing", "replaced")
PAGE = Path(__file__).parents[3] / "docs" / "monitoring.md"


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Return the value of a series without its common prefix, as Prometheus reads it; None if it does not exist."""
    _, text = metrics.exposition()
    name = name if name.startswith("process_") else f"aosp_plugin_{name}"
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if (sample.name, sample.labels) == (name, labels):
                return sample.value
    return None


def values(metrics: Metrics, name: str, label: str) -> dict[str, float]:
    """Return the values of a metric of A by a label."""
    _, text = metrics.exposition()
    return {
        sample.labels[label]: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == f"aosp_plugin_{name}" and sample.labels["resource"] == A
    }


def devices(count: int, reason: str = "", first: int = 0) -> list[Device]:
    return [Device(f"b{number}", reason) for number in range(first, first + count)]


def leaked(count: int, unreadable: int) -> Any:
    """Return the result of a leak scan."""
    return SimpleNamespace(leaked_devices=count, unreadable=unreadable, incomplete=False, undecided=())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(reasons=REASONS, clock=clock)


@pytest.fixture
def observer(metrics: Metrics) -> ResourceMetrics:
    """Return the observer of A."""
    return metrics.observer(A)


# -- states


def test_devices_are_counted_by_reason(metrics: Metrics, observer: ResourceMetrics) -> None:
    """Every known reason has a series from the start, so that an alert does not miss an absent one."""
    assert values(metrics, "devices", "reason") == {"": 0, "missing": 0, "replaced": 0}
    observer.published(Snapshot(1, [*devices(3), *devices(2, "missing", 3), *devices(1, "unknown", 5)]), None)
    assert values(metrics, "devices", "reason") == {"": 3, "missing": 2, "replaced": 0, "unknown": 1}
    assert value(metrics, "devices", resource=A, health="healthy", reason="") == 3
    assert value(metrics, "devices", resource=A, health="unhealthy", reason="missing") == 2
    observer.published(Snapshot(2, devices(5)), None)
    assert values(metrics, "devices", "reason") == {"": 5, "missing": 0, "replaced": 0}
    assert value(metrics, "devices_truncated", resource=A) == 0
    observer.published(Snapshot(3, devices(5), limit=60), None)
    assert values(metrics, "devices", "reason") == {"": 3, "missing": 0, "replaced": 0}
    assert value(metrics, "devices_truncated", resource=A) == 2


def test_leaks_are_absent_before_the_first_scan() -> None:
    """Series are present with 0 only if a scan found no leak. Unreadable processes are the same for all resources."""
    leaks: dict[str, Leaks] = {}
    metrics = state_metrics(A, leaks)
    assert value(metrics, "leaked_devices", resource=A) is None
    assert value(metrics, "leak_unreadable_processes") is None
    leaks.update({A: leaked(2, 3), B: leaked(0, 4)})
    assert value(metrics, "leaked_devices", resource=A) == 2
    assert value(metrics, "leaked_devices", resource=B) == 0
    assert value(metrics, "leak_unreadable_processes") == 4


@pytest.mark.parametrize(("limit", "expected"), [("268435456\n", 2**28), ("max\n", math.inf)])
def test_memory_limit_is_that_of_the_cgroup(tmp_path: Path, limit: str, expected: float) -> None:
    (tmp_path / "own").write_text("4:memory:/v1\n0::/a.slice\n")
    (tmp_path / "a.slice").mkdir()
    assert memory_limit(tmp_path / "own", tmp_path) == math.inf, "no such file, as with cgroup v1"
    (tmp_path / "a.slice" / "memory.max").write_text(limit)
    assert memory_limit(tmp_path / "own", tmp_path) == expected


# -- events


def latencies(metrics: Metrics) -> tuple[float | None, float | None]:
    """Return the number of measured updates, and the sum of their latencies in seconds."""
    name = "update_latency_seconds"
    return value(metrics, f"{name}_count", resource=A), value(metrics, f"{name}_sum", resource=A)


def test_update_latency_counts_from_the_first_of_several_changes(
    metrics: Metrics, observer: ResourceMetrics, clock: Clock
) -> None:
    """A later change without an event does not matter. Each update is measured once."""
    observer.published(Snapshot(1, devices(1)), 99.0)
    observer.published(Snapshot(2, devices(2)), 100.0)
    observer.published(Snapshot(3, devices(3)), None)
    clock.now = 101.0
    observer.sent(20, first=False)
    observer.sent(20, first=False)
    assert latencies(metrics) == (1, 2.0)


@pytest.mark.parametrize(("since", "first"), [(None, False), (1.0, True)])
def test_update_latency_ignores_unknown_starts_and_first_messages(
    metrics: Metrics, observer: ResourceMetrics, since: float | None, *, first: bool
) -> None:
    """A change without an event has no known start. The first message of a stream may have waited for the kubelet."""
    observer.published(Snapshot(1, devices(1)), since)
    observer.sent(20, first=first)
    observer.sent(20, first=False)
    assert latencies(metrics) == (0, 0)


def test_every_event_is_counted_before_and_after_the_library_is_loaded(metrics: Metrics) -> None:
    """It is loaded after the start, and what happened until then is not lost."""
    observer = metrics.observer(A)

    def all_events() -> None:
        observer.scanned("ok", 0.1)
        observer.host_updated("failed")
        observer.registration("ok")
        observer.unregistered()
        observer.lost_by_kubelet()
        observer.kubelet_restarted()
        observer.other_plugins(2)
        for _ in range(3):
            observer.stream_opened()
        observer.stream_closed()
        observer.sent(70, first=True)
        observer.answered("PreStartContainer", "INTERNAL", 0.1)

    all_events()
    metrics.load()
    all_events()
    expected = {
        "host_updates_total": ("result", {"ok": 0, "failed": 2}),
        "registrations_total": ("result", {"ok": 2, "failed": 0, "refused": 0}),
        "scans_total": ("result", {"ok": 2, "failed": 0, "hung": 0}),
        "recreations_total": ("result", {"ok": 0, "failed": 2}),
        **{name: ("resource", {A: 2}) for name in ("lost_by_kubelet_total", "kubelet_restarts_total", "other_plugins")},
        "registered": ("resource", {A: 0}),
        "streams_open": ("resource", {A: 4}),
        "messages_sent_total": ("resource", {A: 2}),
        "message_bytes": ("resource", {A: 70}),
        "scan_duration_seconds_count": ("resource", {A: 2}),
    }
    assert {name: (label, values(metrics, name, label)) for name, (label, _) in expected.items()} == expected


# -- format and documentation


def test_metrics_are_valid_openmetrics() -> None:
    """The OpenMetrics parser is strict about names, types, order and buckets. No series has a creation time."""
    complete = complete_metrics()
    content_type, plain = complete.exposition()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"_created" not in plain
    text = openmetrics_text(complete.load()).decode()  # type: ignore[no-untyped-call]
    names = {family.name for family in openmetrics_families(text)}  # type: ignore[no-untyped-call]
    assert {"aosp_plugin_allocations", "aosp_plugin_devices", "aosp_plugin_build_info"} <= names


def test_page_names_every_value_of_a_label() -> None:
    """``make docs`` generates the table of the metrics; the values are in the texts of the code."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## Metrics\n")[2].partition("\n## ")[0]
    words = ("ok", "failed", "refused", "hung", *CODES, *get_args(LeakDetectionState), *get_args(Repaired))
    assert [word for word in words if f"`{word}`" not in text] == []


@pytest.fixture
def driver_metrics() -> Metrics:
    """Return the metrics of a process with one DRA driver."""
    metrics = Metrics()
    metrics.observer(A)
    return metrics


def test_metrics_of_claims_and_slices_exist_only_where_there_is_a_driver(driver_metrics: Metrics) -> None:
    assert value(driver_metrics, "slices_wanted", resource=A) is None
    driver_metrics.observer(A, is_driver=True)
    assert value(driver_metrics, "slices_wanted", resource=A) == 0


def test_prepares_are_counted_by_result_with_their_duration(driver_metrics: Metrics) -> None:
    observer = driver_metrics.observer(A, is_driver=True)
    assert value(driver_metrics, "claim_prepares_total", resource=A, result="failed") == 0
    observer.prepared("failed", 30.0)
    observer.prepared("ok", 0.02)
    observer.unprepared("ok", 0.01)
    assert value(driver_metrics, "claim_prepares_total", resource=A, result="failed") == 1
    assert value(driver_metrics, "claim_prepare_duration_seconds_bucket", resource=A, le="0.025") == 1
    assert value(driver_metrics, "claim_unprepare_duration_seconds_sum", resource=A) == pytest.approx(0.01)


def test_slices_claims_waits_repairs_and_requests_are_shown(driver_metrics: Metrics) -> None:
    observer = driver_metrics.observer(A, is_driver=True)
    observer.slices(3, 2)
    observer.slices_repaired("deleted")
    assert value(driver_metrics, "slices_wanted", resource=A) == 3
    assert value(driver_metrics, "slices_confirmed", resource=A) == 2
    assert value(driver_metrics, "slice_repairs_total", resource=A, reason="deleted") == 1
    observer.claims_changed(7)
    observer.waited_for_device(2.0)
    observer.reconciled("mount", "ok")
    observer.api_request("GET", "resourceclaims", "503")
    assert value(driver_metrics, "claims_prepared", resource=A) == 7
    assert value(driver_metrics, "claim_device_wait_seconds_sum", resource=A) == pytest.approx(2.0)
    assert value(driver_metrics, "claim_repairs_total", resource=A, kind="mount", result="ok") == 1
    series = {"verb": "GET", "object": "resourceclaims", "code": "503"}
    assert value(driver_metrics, "api_requests_total", resource=A, **series) == 1
