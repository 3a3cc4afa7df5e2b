"""The metrics for Prometheus."""

import math
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from aosp_plugin.framework.backend import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.metrics import CODES, PRE_START_CODES, Metrics, Repaired, memory_limit
from tests.reports import complete_metrics

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


@pytest.fixture
def metrics() -> Metrics:
    """Return the metrics of a process with a device plugin of A."""
    metrics = Metrics("aosp_plugin", reasons=REASONS)
    metrics.add(A)
    return metrics


# -- states


def test_devices_are_counted_by_reason(metrics: Metrics) -> None:
    """Every known reason has a series from the start, so that an alert does not miss an absent one."""
    unknown = devices(1, "unknown", 5)
    for snapshot, counts, truncated in (
        (Snapshot(0, ()), {"": 0, "missing": 0, "replaced": 0}, 0),
        (Snapshot(1, [*devices(3), *devices(2, "missing", 3), *unknown]), {"": 3, "missing": 2, "unknown": 1}, 0),
        (Snapshot(2, devices(5), limit=60), {"": 3, "missing": 0, "unknown": 0}, 2),
    ):
        metrics.count_devices(A, snapshot)
        assert values(metrics, "devices", "reason") == {"replaced": 0, **counts}
        assert value(metrics, "devices_truncated", resource=A) == truncated
    assert value(metrics, "devices", resource=A, health="healthy", reason="") == 3
    assert value(metrics, "devices", resource=A, health="unhealthy", reason="missing") == 0


@pytest.mark.parametrize(("limit", "expected"), [("268435456\n", 2**28), ("max\n", math.inf)])
def test_memory_limit_is_that_of_the_cgroup(tmp_path: Path, limit: str, expected: float) -> None:
    (tmp_path / "own").write_text("4:memory:/v1\n0::/a.slice\n")
    (tmp_path / "a.slice").mkdir()
    assert memory_limit(tmp_path / "own", tmp_path) == math.inf, "no such file, as with cgroup v1"
    (tmp_path / "a.slice" / "memory.max").write_text(limit)
    assert memory_limit(tmp_path / "own", tmp_path) == expected


# -- events


def test_series_whose_labels_are_known_exist_from_the_start(metrics: Metrics) -> None:
    """``rate`` ignores the first value of a series. Those of claims and slices exist only where there is a driver."""
    metrics.add(B, is_driver=True)
    assert values(metrics, "allocations_total", "code") == dict.fromkeys(CODES, 0)
    assert values(metrics, "pre_starts_total", "code") == dict.fromkeys(PRE_START_CODES, 0)
    assert values(metrics, "scans_total", "result") == {"ok": 0, "failed": 0, "hung": 0}
    assert value(metrics, "scan_duration_seconds_count", resource=A) == 0
    assert value(metrics, "slices_wanted", resource=A) is None
    assert value(metrics, "slices_wanted", resource=B) == 0
    assert value(metrics, "claim_repairs_total", resource=B, kind="mount", result="failed") == 0


# -- format and documentation


def test_metrics_are_valid_openmetrics() -> None:
    """The OpenMetrics parser is strict about names, types, order and buckets. No series has a creation time."""
    complete = complete_metrics()
    content_type, plain = complete.exposition()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"_created" not in plain
    text = openmetrics_text(complete.registry).decode()  # type: ignore[no-untyped-call]
    names = {family.name for family in openmetrics_families(text)}  # type: ignore[no-untyped-call]
    assert {"aosp_plugin_allocations", "aosp_plugin_devices", "aosp_plugin_build_info"} <= names


def test_page_names_every_value_of_a_label() -> None:
    """``make generate`` generates the table of the metrics; the values are in the texts of the code."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## Metrics\n")[2].partition("\n## ")[0]
    words = ("ok", "failed", "hung", *PRE_START_CODES, *get_args(Repaired))
    assert [word for word in words if f"`{word}`" not in text] == []


def test_page_names_the_metrics_that_only_a_driver_has(metrics: Metrics) -> None:
    """They are together in the table, whose order is that of the code."""
    plugin = {family.name for family in metrics.registry.collect() if family.samples}
    metrics.add(B, is_driver=True)
    drivers = [family for family in metrics.registry.collect() if family.samples and family.name not in plugin]
    first, last = (f"{each.name}{'_total' * (each.type == 'counter')}" for each in (drivers[0], drivers[-1]))
    assert f"`{first}` to `{last}` exist" in " ".join(PAGE.read_text(encoding="utf-8").split())
