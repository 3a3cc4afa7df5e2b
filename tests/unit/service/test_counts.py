"""Metrics that events change, as the client library of Prometheus reads them."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as LibraryHistogram

from aosp_plugin.framework.service.counts import Registry


def read(registry: Registry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the value of each series by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


@given(st.lists(st.floats(0, 100)))
def test_histogram_counts_like_that_of_the_client_library(seconds: list[float]) -> None:
    """A value that equals the bound of a bucket belongs to it, and each bucket contains those before it."""
    bounds = (0.005, 0.25, 1, 30)
    registry = Registry()
    ours = registry.histogram("h", "Help.", bounds).labels()
    library = LibraryHistogram("h", "Help.", registry=CollectorRegistry(), buckets=bounds)
    for value in (*seconds, *bounds):
        ours.observe(value)
        library.observe(value)
    expected = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in library.collect()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }
    assert read(registry) == pytest.approx(expected)


def test_counts_of_several_threads_add_up() -> None:
    registry = Registry()
    counter = registry.counter("requests_total", "Help.", "code")

    def count() -> None:
        for _ in range(10_000):
            counter.labels("OK").inc()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(registry) == {("requests_total", frozenset({("code", "OK")})): 40_000}


def test_client_library_is_loaded_by_the_first_scrape() -> None:
    """It would delay the start, and a process that is never scraped would have it for nothing."""
    program = (
        "import sys\n"
        "from aosp_plugin.framework.service.metrics import Metrics\n"
        "metrics = Metrics()\n"
        "metrics.observer('a').answered('Allocate', 'OK', 1.0)\n"
        "print('prometheus_client' in sys.modules)\n"
        "metrics.exposition()\n"
        "print('prometheus_client' in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert result.stdout.split() == ["False", "True"]
