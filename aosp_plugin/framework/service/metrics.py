"""What is counted, measured and shown to Prometheus. ``docs/metrics.md`` has a row for each metric.

What happens is counted when it does (``ResourceMetrics`` is the ``Observer`` of one plugin); what is (devices, leaks,
allocations) is asked when somebody looks. There is no series for a device, of which a host may have ten thousands.
"""

from __future__ import annotations

import collections
import platform
import time
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import GaugeMetricFamily

from aosp_plugin import __version__
from aosp_plugin.framework.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Literal, Protocol

    from prometheus_client import Metric

    from aosp_plugin.framework.inventory import Snapshot

    class LeakCounts(Protocol):
        """What a round of leak detection found for one resource."""

        @property
        def leaked_devices(self) -> int:
            """Number of leaked devices."""

        @property
        def unreadable(self) -> int:
            """Number of processes that could not be read."""


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format (prometheus.io/docs/instrumenting/exposition_formats)."""

CODES = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "INTERNAL", "UNKNOWN")
"""What Allocate can be answered with; each is there from the start, as no rate is seen of a series' first value."""

_ALLOCATION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_SCAN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_UPDATE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The metrics of one process, on a registry of their own."""

    def __init__(self, reasons: Iterable[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """``reasons`` are those for Unhealthy that have a series from the start; ``clock`` is that of the observers."""
        # Else each counter has a series that says when it was made, which Prometheus can't use in this format.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._reasons = ("", *reasons)
        self._clock = clock
        self._registry = CollectorRegistry()
        self._observers: dict[str, ResourceMetrics] = {}
        self.allocated: Callable[[], Mapping[str, int]] = dict
        """Returns how many devices pods have, by resource; without those of which that is not known."""
        self.leaks: Callable[[], Mapping[str, LeakCounts]] = dict
        """Returns the leaks by resource; nothing before they were looked for."""
        self.polling: Callable[[], bool] = bool
        """Returns whether there is no inotify."""
        self.counted = Counted(self._registry)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def observer(self, resource: str) -> ResourceMetrics:
        """Return what is to be told what the plugin of a resource does. For one plugin."""
        self._observers[resource] = ResourceMetrics(resource, self.counted, self._reasons, self._clock)
        return self._observers[resource]

    def exposition(self) -> tuple[str, bytes]:
        """Return the content type and the text for Prometheus; in any thread, also where the event loop is stuck."""
        return CONTENT_TYPE, generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Return what is asked only when somebody looks."""
        yield from self._devices()
        yield from self._leaks()
        allocated = _gauge("aosp_plugin_devices_allocated", "Devices that pods have.", "resource")
        for resource, count in self.allocated().items():
            allocated.add_metric([resource], count)
        yield allocated
        polling = _gauge("aosp_plugin_polling", "1 where inotify can't be had, and directories are polled.")
        polling.add_metric([], self.polling())
        yield polling
        build = _gauge("aosp_plugin_build_info", "Always 1.", "version", "python")
        build.add_metric([__version__, platform.python_version()], 1)
        yield build

    def _devices(self) -> Iterator[Metric]:
        devices = _gauge("aosp_plugin_devices", "Devices that the kubelet is told of.", "resource", "health", "reason")
        truncated = _gauge("aosp_plugin_devices_truncated", "Devices that the message has no room for.", "resource")
        for resource, observer in self._observers.items():
            for reason, count in observer.devices().items():
                devices.add_metric([resource, "unhealthy" if reason else "healthy", reason], count)
            truncated.add_metric([resource], observer.snapshot.truncated if observer.snapshot else 0)
        yield devices
        yield truncated

    def _leaks(self) -> Iterator[Metric]:
        nodes = _gauge("aosp_plugin_leaked_devices", "Nodes held by a process outside their pod.", "resource")
        unreadable = _gauge("aosp_plugin_leak_unreadable_processes", "Processes that could not be looked at for leaks.")
        leaks = self.leaks()
        for resource, found in leaks.items():
            nodes.add_metric([resource], found.leaked_devices)
        if leaks:
            unreadable.add_metric([], max(found.unreadable for found in leaks.values()))
        yield nodes
        yield unreadable


class Counted:
    """The metrics that are counted as things happen, for all resources."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"aosp_plugin_{name}", text, ("resource", *labels), registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"aosp_plugin_{name}", text, ("resource",), registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"aosp_plugin_{name}", text, ("resource",), registry=registry, buckets=buckets)

        self.allocations = counter("allocations_total", "Allocate requests by gRPC code.", "code")
        self.allocation_duration = histogram(
            "allocation_duration_seconds", "Time to answer Allocate.", _ALLOCATION_BUCKETS
        )
        self.renewals = counter("recreations_total", "PreStartContainer requests.", "result")
        self.registrations = counter("registrations_total", "Attempts to register.", "result")
        self.registered = gauge("registered", "1 while the kubelet knows the plugin.")
        self.kubelet_restarts = counter("kubelet_restarts_total", "Registrations with a new kubelet.")
        self.streams_open = gauge("streams_open", "ListAndWatch calls under way.")
        self.messages = counter("messages_sent_total", "Lists of devices handed to a stream.")
        self.message_bytes = gauge("message_bytes", "Size of the last list that was sent.")
        self.update_latency = histogram(
            "update_latency_seconds", "From the first file event to the message that tells it.", _UPDATE_BUCKETS
        )
        self.scans = counter("scans_total", "Looks at the devices.", "result")
        self.scan_duration = histogram("scan_duration_seconds", "Time of a look at the devices.", _SCAN_BUCKETS)


class ResourceMetrics(Observer):
    """The observer of one resource's plugin. Costs microseconds each time, as a kubelet waits meanwhile."""

    def __init__(self, resource: str, counted: Counted, reasons: Iterable[str], clock: Callable[[], float]) -> None:
        self._reasons = tuple(reasons)
        self._clock = clock
        self._since: float | None = None
        self._devices: tuple[int, Mapping[str, int]] = (0, dict.fromkeys(self._reasons, 0))
        self.snapshot: Snapshot | None = None
        """The devices as of the last change."""
        self._allocations = {code: counted.allocations.labels(resource, code) for code in CODES}
        self._renewals = {result: counted.renewals.labels(resource, result) for result in ("ok", "failed")}
        self._registrations = {
            result: counted.registrations.labels(resource, result) for result in ("ok", "failed", "refused")
        }
        self._scans = {result: counted.scans.labels(resource, result) for result in ("ok", "failed", "hung")}
        self._allocation_duration = counted.allocation_duration.labels(resource)
        self._registered = counted.registered.labels(resource)
        self._kubelet_restarts = counted.kubelet_restarts.labels(resource)
        self._streams_open = counted.streams_open.labels(resource)
        self._messages = counted.messages.labels(resource)
        self._message_bytes = counted.message_bytes.labels(resource)
        self._update_latency = counted.update_latency.labels(resource)
        self._scan_duration = counted.scan_duration.labels(resource)

    def devices(self) -> Mapping[str, int]:
        """Return how many devices there are for each reason; empty: the healthy ones. Counted once for a snapshot."""
        snapshot = self.snapshot
        if snapshot is not None and snapshot.revision != self._devices[0]:
            told = snapshot.devices[: len(snapshot.devices) - snapshot.truncated]
            counts = collections.Counter(device.reason for device in told)
            self._devices = (snapshot.revision, dict.fromkeys(self._reasons, 0) | counts)
        return self._devices[1]

    def scanned(self, result: Literal["ok", "failed", "hung"], seconds: float) -> None:
        """Count a look, and its time once it has ended."""
        self._scans[result].inc()
        if result != "hung":
            self._scan_duration.observe(seconds)

    def published(self, snapshot: Snapshot, since: float | None) -> None:
        """Keep the devices, and since when the kubelet is to be told of them."""
        self.snapshot = snapshot
        if self._since is None:
            self._since = since

    def registration(self, result: Literal["ok", "failed", "refused"]) -> None:
        """Count an attempt."""
        self._registrations[result].inc()
        self._registered.set(result == "ok")

    def unregistered(self) -> None:
        """Note the end of a registration."""
        self._registered.set(0)

    def kubelet_restarted(self) -> None:
        """Count it."""
        self._kubelet_restarts.inc()

    def stream_opened(self) -> None:
        """Count it in."""
        self._streams_open.inc()

    def stream_closed(self) -> None:
        """Count it out."""
        self._streams_open.dec()

    def sent(self, size: int, *, first: bool) -> None:
        """Count a message; the first one of a stream is no update, as its time is that without a kubelet."""
        self._messages.inc()
        self._message_bytes.set(size)
        if self._since is not None and not first:
            self._update_latency.observe(self._clock() - self._since)
        self._since = None

    def answered(self, rpc: str, code: str, seconds: float) -> None:
        """Count Allocate and PreStartContainer."""
        if rpc == "Allocate":
            self._allocations[code].inc()
            self._allocation_duration.observe(seconds)
        elif rpc == "PreStartContainer":
            self._renewals["ok" if code == "OK" else "failed"].inc()


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)
