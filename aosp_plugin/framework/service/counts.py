"""Metrics that events change: counters, gauges and histograms in plain Python, and their families for Prometheus.

prometheus_client is imported at the first scrape. It loads HTTP servers and other formats, too much to do before the
kubelet has the devices, and its counters cost several times as much for each event.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric


class Value:
    """One series of a counter or a gauge. May be used in any thread."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add to the value."""
        with self._lock:
            self.value += amount

    def dec(self) -> None:
        """Subtract 1 from the value."""
        self.inc(-1)

    def set(self, value: float) -> None:
        """Replace the value."""
        with self._lock:
            self.value = value


class Histogram:
    """One series of a histogram. May be used in any thread."""

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds`` are the upper bounds of the buckets in ascending order, without infinity."""
        self._lock = threading.Lock()
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        bucket = bisect.bisect_left(self._bounds, value)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += value

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return the upper bound of each bucket with the number of values up to it, and the sum of all values."""
        with self._lock:
            counts, total = tuple(self._counts), self._sum
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(bounds, itertools.accumulate(counts), strict=True)), total


T = TypeVar("T", Value, Histogram)


class Series(Generic[T]):
    """All series of a metric: one for each combination of labels that has been used."""

    def __init__(self, labels: tuple[str, ...], create: Callable[[], T]) -> None:
        """``labels`` are the names of the labels; ``create`` returns a new series."""
        self.names = labels
        self._create: Callable[[], T] = create
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], T] = {}

    def labels(self, *values: str) -> T:
        """Return the series with these values of the labels, which exists from then on."""
        with self._lock:
            if values not in self._series:
                self._series[values] = self._create()
            return self._series[values]

    def items(self) -> list[tuple[tuple[str, ...], T]]:
        """Return the series by the values of their labels."""
        with self._lock:
            return list(self._series.items())


class Registry:
    """The metrics that events change, in the order in which they were added."""

    def __init__(self) -> None:
        self._values: list[tuple[str, str, str, Series[Value]]] = []
        self._histograms: list[tuple[str, str, Series[Histogram]]] = []

    def counter(self, name: str, help_text: str, *labels: str) -> Series[Value]:
        """Add a counter, whose name ends with _total."""
        return self._add("counter", name, help_text, labels)

    def gauge(self, name: str, help_text: str, *labels: str) -> Series[Value]:
        """Add a gauge."""
        return self._add("gauge", name, help_text, labels)

    def histogram(self, name: str, help_text: str, bounds: tuple[float, ...], *labels: str) -> Series[Histogram]:
        """Add a histogram, with the upper bounds of its buckets in ascending order."""
        series = Series(labels, lambda: Histogram(bounds))
        self._histograms.append((name, help_text, series))
        return series

    def _add(self, kind: str, name: str, help_text: str, labels: tuple[str, ...]) -> Series[Value]:
        series = Series(labels, Value)
        self._values.append((kind, name, help_text, series))
        return series

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their current values. Imports prometheus_client."""
        from prometheus_client.metrics_core import (  # noqa: PLC0415 - see above
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        for kind, name, help_text, values in self._values:
            family = families[kind](name, help_text, labels=values.names)
            for labels, value in values.items():
                family.add_metric(labels, value.value)
            yield family
        for name, help_text, histograms in self._histograms:
            histogram_family = HistogramMetricFamily(name, help_text, labels=histograms.names)
            for labels, histogram in histograms.items():
                histogram_family.add_metric(labels, *histogram.buckets())
            yield histogram_family
