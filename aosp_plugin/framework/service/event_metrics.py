"""Prometheus metrics that count events as they happen: ``ResourceMetrics`` is the ``Observer`` of one plugin."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from aosp_plugin.framework.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aosp_plugin.framework.inventory import Snapshot
    from aosp_plugin.framework.service.counts import Histogram, Registry, Series, Value

CODES = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "INTERNAL", "UNKNOWN")
"""Status codes of Allocate that the framework answers; a backend may have more. The series of these exist from the
start, because ``rate`` ignores a series' first value."""

_ALLOCATION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_SCAN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_UPDATE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class EventMetrics:
    """The metrics that count events, for all resources."""

    def __init__(self, registry: Registry) -> None:
        def counter(name: str, help_text: str, *labels: str) -> Series[Value]:
            return registry.counter(f"aosp_plugin_{name}", help_text, "resource", *labels)

        def gauge(name: str, help_text: str) -> Series[Value]:
            return registry.gauge(f"aosp_plugin_{name}", help_text, "resource")

        def histogram(name: str, help_text: str, buckets: tuple[float, ...]) -> Series[Histogram]:
            return registry.histogram(f"aosp_plugin_{name}", help_text, buckets, "resource")

        self.allocations = counter("allocations_total", "Allocate requests by gRPC status code.", "code")
        self.allocation_duration = histogram(
            "allocation_duration_seconds", "Duration of Allocate requests.", _ALLOCATION_BUCKETS
        )
        self.recreations = counter("recreations_total", "PreStartContainer requests, which recreate devices.", "result")
        self.registrations = counter("registrations_total", "Attempts to register with the kubelet.", "result")
        self.registered = gauge("registered", "1 while the plugin is registered with the kubelet.")
        self.kubelet_restarts = counter("kubelet_restarts_total", "Registrations with a restarted kubelet.")
        self.lost_by_kubelet = counter(
            "lost_by_kubelet_total", "Registrations that ended because the kubelet had lost the devices."
        )
        self.streams_open = gauge("streams_open", "Open ListAndWatch streams.")
        self.messages = counter("messages_sent_total", "Device lists sent on ListAndWatch streams.")
        self.message_bytes = gauge("message_bytes", "Size of the device list that was sent last.")
        self.update_latency = histogram(
            "update_latency_seconds", "Time from a file event to the device list that contains it.", _UPDATE_BUCKETS
        )
        self.scans = counter("scans_total", "Device scans by result.", "result")
        self.host_updates = counter("host_updates_total", "Updates of the host after device scans by result.", "result")
        self.scan_duration = histogram("scan_duration_seconds", "Duration of device scans.", _SCAN_BUCKETS)


class ResourceMetrics(Observer):
    """The observer of one resource's plugin. Its methods take microseconds, because the kubelet waits for them."""

    def __init__(self, resource: str, events: EventMetrics, reasons: Iterable[str], clock: Callable[[], float]) -> None:
        self._reasons = tuple(reasons)
        self._clock = clock
        self._changed_since: float | None = None
        self._devices: tuple[int, Mapping[str, int]] = (0, dict.fromkeys(self._reasons, 0))
        self.snapshot: Snapshot | None = None
        self.allocatable: int | None = None
        self.others = 0
        """The devices as of the latest change."""
        self._allocations = partial(events.allocations.labels, resource)
        for code in CODES:
            self._allocations(code)
        self._recreations = {result: events.recreations.labels(resource, result) for result in ("ok", "failed")}
        self._registrations = {
            result: events.registrations.labels(resource, result) for result in ("ok", "failed", "refused")
        }
        self._scans = {result: events.scans.labels(resource, result) for result in ("ok", "failed", "hung")}
        self._host_updates = {result: events.host_updates.labels(resource, result) for result in ("ok", "failed")}
        self._allocation_duration = events.allocation_duration.labels(resource)
        self._registered = events.registered.labels(resource)
        self._kubelet_restarts = events.kubelet_restarts.labels(resource)
        self._lost_by_kubelet = events.lost_by_kubelet.labels(resource)
        self._streams_open = events.streams_open.labels(resource)
        self._messages = events.messages.labels(resource)
        self._message_bytes = events.message_bytes.labels(resource)
        self._update_latency = events.update_latency.labels(resource)
        self._scan_duration = events.scan_duration.labels(resource)

    def devices(self) -> Mapping[str, int]:
        """Return the number of devices by reason; healthy devices have an empty one. Counted once per snapshot."""
        snapshot = self.snapshot
        if snapshot is not None and snapshot.revision != self._devices[0]:
            self._devices = (snapshot.revision, {**dict.fromkeys(self._reasons, 0), **snapshot.reasons})
        return self._devices[1]

    def scanned(self, result: Literal["ok", "failed", "hung"], seconds: float) -> None:
        """Count a scan, and its duration unless it hangs."""
        self._scans[result].inc()
        if result != "hung":
            self._scan_duration.observe(seconds)

    def host_updated(self, result: Literal["ok", "failed"]) -> None:
        """Count an update of the host."""
        self._host_updates[result].inc()

    def published(self, snapshot: Snapshot, since: float | None) -> None:
        """Keep the snapshot, and when the first change in it happened that the kubelet does not know yet."""
        self.snapshot = snapshot
        if self._changed_since is None:
            self._changed_since = since

    def registration(self, result: Literal["ok", "failed", "refused"]) -> None:
        """Count an attempt to register."""
        self._registrations[result].inc()
        self._registered.set(result == "ok")

    def unregistered(self) -> None:
        """Record the end of a registration."""
        self._registered.set(0)

    def lost_by_kubelet(self) -> None:
        """Count a registration that ended because the kubelet had lost the devices."""
        self._lost_by_kubelet.inc()

    def confirmed(self, allocatable: int | None) -> None:
        """Keep the kubelet's number of healthy devices."""
        self.allocatable = allocatable

    def other_plugins(self, count: int) -> None:
        """Keep the number of other plugins of the resource."""
        self.others = count

    def kubelet_restarted(self) -> None:
        """Count a kubelet restart."""
        self._kubelet_restarts.inc()

    def stream_opened(self) -> None:
        """Count an opened stream."""
        self._streams_open.inc()

    def stream_closed(self) -> None:
        """Count a closed stream."""
        self._streams_open.dec()

    def sent(self, size: int, *, first: bool) -> None:
        """Count a message. The first one of a stream is no update: its latency would include the kubelet's absence."""
        self._messages.inc()
        self._message_bytes.set(size)
        if self._changed_since is not None and not first:
            self._update_latency.observe(self._clock() - self._changed_since)
        self._changed_since = None

    def answered(self, rpc: str, code: str, seconds: float) -> None:
        """Count Allocate and PreStartContainer requests."""
        if rpc == "Allocate":
            self._allocations(code).inc()
            self._allocation_duration.observe(seconds)
        elif rpc == "PreStartContainer":
            self._recreations["ok" if code == "OK" else "failed"].inc()
