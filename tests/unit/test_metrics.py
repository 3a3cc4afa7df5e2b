"""What is counted, measured and shown to Prometheus."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from aosp_plugin import __version__
from aosp_plugin.binder.discovery.health import Reason
from aosp_plugin.daemon.leaks import Holder, Leaks
from aosp_plugin.framework.inventory import Device, Snapshot
from aosp_plugin.framework.service.metrics import CODES, Metrics, ResourceMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B = "aosp.io/a", "aosp.io/b"
TABLE = Path(__file__).parents[2] / "docs" / "metrics.md"


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Return the value of a series as Prometheus reads it; None where there is none."""
    _, text = metrics.exposition()
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if (sample.name, sample.labels) == (name, labels):
                return sample.value
    return None


def devices(count: int, reason: str = "", first: int = 0) -> list[Device]:
    """Return devices."""
    return [Device(f"b{number}", reason) for number in range(first, first + count)]


def leaks(*held: tuple[str, int], unreadable: int = 0) -> Leaks:
    """Return leaks: names of nodes and the PIDs that hold them."""
    found = tuple(Holder(node, pid, "", 0.0, 0.0, 0, "", "") for node, pid in held)
    return Leaks(found, (), unreadable, whole=True)


class Clock:
    """Seconds that go by when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def full() -> Metrics:
    """Return metrics with every series there can be."""
    metrics = Metrics(Reason)
    for resource in (A, B):
        metrics.observer(resource).published(Snapshot(1, devices(2)), None)
    metrics.leaks = lambda: {A: leaks(("b1", 7)), B: leaks()}
    metrics.allocated = lambda: {A: 3}
    return metrics


def test_every_reason_is_there_before_the_first_look() -> None:
    """With 0, so that an alert on one does not miss a series that is absent."""
    metrics = Metrics(Reason)
    metrics.observer(A)
    assert value(metrics, "aosp_plugin_devices", resource=A, health="healthy", reason="") == 0
    for reason in Reason:
        assert value(metrics, "aosp_plugin_devices", resource=A, health="unhealthy", reason=reason.value) == 0
    assert value(metrics, "aosp_plugin_devices_truncated", resource=A) == 0


def test_devices_are_counted_by_reason() -> None:
    """Those of the newest list; a reason that no one has any more is 0 again, and another backend's may be any word."""
    metrics = Metrics(Reason)
    observer = metrics.observer(A)
    observer.published(Snapshot(1, [*devices(3), *devices(2, "missing", 3), *devices(1, "melted", 5)]), None)
    assert value(metrics, "aosp_plugin_devices", resource=A, health="healthy", reason="") == 3
    assert value(metrics, "aosp_plugin_devices", resource=A, health="unhealthy", reason="missing") == 2
    assert value(metrics, "aosp_plugin_devices", resource=A, health="unhealthy", reason="melted") == 1
    assert value(metrics, "aosp_plugin_devices", resource=A, health="unhealthy", reason="replaced") == 0
    observer.published(Snapshot(2, devices(5)), None)
    assert value(metrics, "aosp_plugin_devices", resource=A, health="healthy", reason="") == 5
    assert value(metrics, "aosp_plugin_devices", resource=A, health="unhealthy", reason="missing") == 0


def test_devices_are_counted_once_for_a_list() -> None:
    """A scrape every second must not go through ten thousand devices each time."""
    observer = Metrics(Reason).observer(A)
    observer.published(Snapshot(1, devices(3)), None)
    assert observer.devices() is observer.devices()


def test_devices_that_are_left_out_are_counted_apart() -> None:
    """What is healthy here is what the kubelet may hand out."""
    metrics = Metrics(Reason)
    metrics.observer(A).published(Snapshot(1, devices(5), limit=60), None)
    assert value(metrics, "aosp_plugin_devices", resource=A, health="healthy", reason="") == 3
    assert value(metrics, "aosp_plugin_devices_truncated", resource=A) == 2


def test_a_thousand_devices_have_as_many_series_as_three() -> None:
    """Nothing is told of a single device."""
    few, many = Metrics(Reason), Metrics(Reason)
    few.observer(A).published(Snapshot(1, devices(3)), None)
    many.observer(A).published(Snapshot(1, devices(1000)), None)
    assert few.exposition()[1].count(b"\n") == many.exposition()[1].count(b"\n")


def test_leaks_are_absent_before_they_were_looked_for() -> None:
    """No leak and not knowing are not the same."""
    metrics = Metrics(Reason)
    metrics.observer(A)
    assert value(metrics, "aosp_plugin_leaked_devices", resource=A) is None
    assert value(metrics, "aosp_plugin_leak_unreadable_processes") is None


def test_a_leaked_node_counts_once_however_many_hold_it() -> None:
    """And a process that could not be looked at counts once for all resources."""
    metrics = Metrics(Reason)
    metrics.leaks = lambda: {A: leaks(("b1", 7), ("b1", 8), ("b2", 7), unreadable=3), B: leaks(unreadable=4)}
    assert value(metrics, "aosp_plugin_leaked_devices", resource=A) == 2
    assert value(metrics, "aosp_plugin_leaked_devices", resource=B) == 0
    assert value(metrics, "aosp_plugin_leak_unreadable_processes") == 4


def test_allocated_devices_are_absent_where_they_are_not_known() -> None:
    """Of each resource by itself."""
    metrics = Metrics(Reason)
    metrics.observer(A)
    assert value(metrics, "aosp_plugin_devices_allocated", resource=A) is None
    metrics.allocated = lambda: {A: 3}
    assert value(metrics, "aosp_plugin_devices_allocated", resource=A) == 3
    assert value(metrics, "aosp_plugin_devices_allocated", resource=B) is None


def test_polling_is_asked_each_time() -> None:
    """It ends when inotify can be had again."""
    metrics = Metrics(Reason)
    assert value(metrics, "aosp_plugin_polling") == 0
    metrics.polling = lambda: True
    assert value(metrics, "aosp_plugin_polling") == 1


def test_the_build_is_told() -> None:
    """Its version and that of Python."""
    build = value(Metrics(Reason), "aosp_plugin_build_info", version=__version__, python=platform.python_version())
    assert build == 1


@pytest.fixture
def clock() -> Clock:
    """Return a clock."""
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    """Return metrics over that clock."""
    return Metrics(Reason, clock)


@pytest.fixture
def observer(metrics: Metrics) -> ResourceMetrics:
    """Return the observer of A."""
    return metrics.observer(A)


def latencies(metrics: Metrics) -> tuple[float | None, float | None]:
    """Return how many updates were measured, and their sum in seconds."""
    name = "aosp_plugin_update_latency_seconds"
    return value(metrics, f"{name}_count", resource=A), value(metrics, f"{name}_sum", resource=A)


def test_an_update_takes_from_its_first_event_to_its_message(
    metrics: Metrics, observer: ResourceMetrics, clock: Clock
) -> None:
    """Once for each message."""
    observer.sent(10, first=True)
    observer.published(Snapshot(1, devices(1)), 99.5)
    clock.now = 102.0
    observer.sent(20, first=False)
    assert latencies(metrics) == (1, 2.5)
    observer.sent(20, first=False)
    assert latencies(metrics) == (1, 2.5)


def test_of_two_changes_in_one_message_the_first_one_counts(
    metrics: Metrics, observer: ResourceMetrics, clock: Clock
) -> None:
    """Also where the second one came without an event."""
    observer.published(Snapshot(1, devices(1)), 99.0)
    observer.published(Snapshot(2, devices(2)), 100.0)
    observer.published(Snapshot(3, devices(3)), None)
    clock.now = 101.0
    observer.sent(20, first=False)
    assert latencies(metrics) == (1, 2.0)


def test_what_was_found_without_an_event_is_not_measured(metrics: Metrics, observer: ResourceMetrics) -> None:
    """Nobody knows when it changed."""
    observer.published(Snapshot(1, devices(1)), None)
    observer.sent(20, first=False)
    assert latencies(metrics) == (0, 0)


def test_the_first_message_of_a_stream_is_no_update(metrics: Metrics, observer: ResourceMetrics) -> None:
    """It may have waited for a kubelet for an hour; nor does the next one count what that one told."""
    observer.published(Snapshot(1, devices(1)), 1.0)
    observer.sent(20, first=True)
    observer.sent(20, first=False)
    assert latencies(metrics) == (0, 0)


def test_messages_are_counted_and_the_last_ones_size_is_kept(metrics: Metrics, observer: ResourceMetrics) -> None:
    """Of each resource by itself."""
    metrics.observer(B).sent(7, first=True)
    observer.sent(20, first=True)
    observer.sent(10, first=False)
    assert value(metrics, "aosp_plugin_messages_sent_total", resource=A) == 2
    assert value(metrics, "aosp_plugin_message_bytes", resource=A) == 10
    assert value(metrics, "aosp_plugin_messages_sent_total", resource=B) == 1
    assert value(metrics, "aosp_plugin_message_bytes", resource=B) == 7


def test_a_registration_counts_by_its_result_and_lasts_until_it_is_over(
    metrics: Metrics, observer: ResourceMetrics
) -> None:
    """One that fails or is refused leaves the plugin unregistered."""
    for result, registered in (("failed", 0), ("ok", 1), ("refused", 0), ("ok", 1)):
        observer.registration(result)  # type: ignore[arg-type] # a str of those three
        assert value(metrics, "aosp_plugin_registered", resource=A) == registered
    observer.unregistered()
    assert value(metrics, "aosp_plugin_registered", resource=A) == 0
    counts = [
        value(metrics, "aosp_plugin_registrations_total", resource=A, result=result)
        for result in ("ok", "failed", "refused")
    ]
    assert counts == [2, 1, 1]


def test_streams_are_counted_in_and_out(metrics: Metrics, observer: ResourceMetrics) -> None:
    """Two of them for a moment, where a newer one supersedes the last."""
    for change, streams in ((observer.stream_opened, 1), (observer.stream_opened, 2), (observer.stream_closed, 1)):
        change()
        assert value(metrics, "aosp_plugin_streams_open", resource=A) == streams


def test_a_look_that_hangs_is_counted_and_not_timed(metrics: Metrics, observer: ResourceMetrics) -> None:
    """Its time is known once it has returned."""
    observer.scanned("hung", 30.0)
    assert value(metrics, "aosp_plugin_scan_duration_seconds_count", resource=A) == 0
    observer.scanned("ok", 40.0)
    observer.scanned("failed", 0.5)
    counts = [
        value(metrics, "aosp_plugin_scans_total", resource=A, result=result) for result in ("ok", "failed", "hung")
    ]
    assert counts == [1, 1, 1]
    assert value(metrics, "aosp_plugin_scan_duration_seconds_count", resource=A) == 2
    assert value(metrics, "aosp_plugin_scan_duration_seconds_sum", resource=A) == 40.5


def test_allocations_are_counted_by_code_and_timed(metrics: Metrics, observer: ResourceMetrics) -> None:
    """Each code is there from the start; other requests are none."""
    assert {value(metrics, "aosp_plugin_allocations_total", resource=A, code=code) for code in CODES} == {0}
    for code in CODES:
        observer.answered("Allocate", code, 0.0002)
    observer.answered("Allocate", "OK", 2.0)
    observer.answered("GetPreferredAllocation", "OK", 0.0001)
    counts = [value(metrics, "aosp_plugin_allocations_total", resource=A, code=code) for code in CODES]
    assert counts == [2, 1, 1, 1, 1, 1]
    name = "aosp_plugin_allocation_duration_seconds"
    buckets = [value(metrics, f"{name}_bucket", resource=A, le=bound) for bound in ("0.0001", "0.00025", "1.0", "+Inf")]
    assert buckets == [0, 6, 6, 7]
    assert value(metrics, f"{name}_sum", resource=A) == pytest.approx(2.0012)


def test_renewals_are_ok_or_failed(metrics: Metrics, observer: ResourceMetrics) -> None:
    """Whatever the code; they are no allocations."""
    for code in ("OK", "FAILED_PRECONDITION", "INTERNAL"):
        observer.answered("PreStartContainer", code, 0.1)
    assert value(metrics, "aosp_plugin_recreations_total", resource=A, result="ok") == 1
    assert value(metrics, "aosp_plugin_recreations_total", resource=A, result="failed") == 2
    assert value(metrics, "aosp_plugin_allocation_duration_seconds_count", resource=A) == 0


def test_kubelets_that_restart_are_counted(metrics: Metrics, observer: ResourceMetrics) -> None:
    """From 0 on."""
    assert value(metrics, "aosp_plugin_kubelet_restarts_total", resource=A) == 0
    observer.kubelet_restarted()
    assert value(metrics, "aosp_plugin_kubelet_restarts_total", resource=A) == 1


def test_several_in_one_process_are_apart() -> None:
    """As in a process whose configuration was read again."""
    first, second = Metrics(Reason), Metrics(Reason)
    first.observer(A).kubelet_restarted()
    second.observer(A)
    assert value(first, "aosp_plugin_kubelet_restarts_total", resource=A) == 1
    assert value(second, "aosp_plugin_kubelet_restarts_total", resource=A) == 0


def test_the_process_is_shown() -> None:
    """With the names that every Prometheus client has."""
    assert (value(Metrics(Reason), "process_resident_memory_bytes") or 0) > 1_000_000
    assert (value(Metrics(Reason), "process_open_fds") or 0) > 2


def test_the_text_is_prometheus() -> None:
    """The type that goes with it, no series that says when another one was made, and no name twice."""
    content_type, text = full().exposition()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"_created" not in text
    families = [family.name for family in text_string_to_metric_families(text.decode())]
    assert len(families) == len(set(families))


def test_the_same_is_openmetrics() -> None:
    """Whose reader is strict about names, types, order and buckets."""
    metrics = full()
    text = openmetrics_text(metrics._registry).decode()  # type: ignore[no-untyped-call]
    names = {family.name for family in openmetrics_families(text)}  # type: ignore[no-untyped-call]
    assert {"aosp_plugin_allocations", "aosp_plugin_devices", "aosp_plugin_build_info"} <= names


def shown() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield name, type and labels of each metric as it is shown."""
    _, text = full().exposition()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text.decode(), re.MULTILINE))
    for family in text_string_to_metric_families(text.decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert len(labels) == 1, f"{name} has samples with different labels, or none"
        yield name, types[name], labels.pop()


def documented() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield the same of each row of the table."""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[1].startswith("`"):
            yield cells[1].strip("`"), cells[2], frozenset(re.findall(r"`(\w+)`", cells[3]))


def test_the_table_in_the_documentation_is_what_is_shown() -> None:
    """Both ways: names, types and labels, one row for a metric."""
    assert sorted(documented()) == sorted(shown())


@pytest.mark.parametrize("result", ["ok", "failed", "refused", "hung"])
def test_the_table_names_every_result(result: str) -> None:
    """And every code."""
    text = TABLE.read_text(encoding="utf-8")
    assert f"`{result}`" in text
    assert all(f"`{code}`" in text for code in CODES)
