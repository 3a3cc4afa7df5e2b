"""Prometheus metrics of the process. ``docs/metrics.md`` lists them.

The observers count events as they happen; ``counters`` has what they count, and reads the states (devices, leaks,
allocations) at each scrape. No series is per device, because a host may have tens of thousands.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from aosp_plugin.framework.observer import DraObserver, Observer, Repaired

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aosp_plugin.framework.inventory import Snapshot
    from aosp_plugin.framework.service.counters import Counters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus text format (prometheus.io/docs/instrumenting/exposition_formats)."""

CODES = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "INTERNAL", "UNKNOWN")
"""Status codes of Allocate that the framework answers; a backend may have more."""

LeakDetectionState = Literal["off", "complete", "pending", "incomplete", "failing"]
"""From the best to the worst: ``pending`` until the first scan has ended, ``incomplete`` if it could not inspect or
attribute some processes, ``failing`` while scans fail or hang, so that the result is outdated."""


class LeakCounts(Protocol):
    """Result of a leak scan of one resource."""

    @property
    def leaked_devices(self) -> int:
        """Number of leaked devices."""

    @property
    def unreadable(self) -> int:
        """Number of processes that could not be inspected."""


class LeakDetection(NamedTuple):
    """Whether leaks are detected."""

    state: LeakDetectionState = "off"
    age: float | None = None
    """Seconds since the last scan ended; None before."""


class States(NamedTuple):
    """What is read at each scrape, in its thread: by resource, without resources for which it is unknown."""

    reasons: tuple[str, ...] = ()
    """The health reasons of the backend; each has a series from the start."""
    allocated: Callable[[], Mapping[str, int]] = dict
    """Returns the number of devices that pods have."""
    gone: Callable[[], Mapping[str, int]] = dict
    """Returns how many of these no longer exist."""
    expected: Mapping[str, int] = {}
    """Number of devices that are provisioned."""
    spread: Callable[[], Mapping[str, Mapping[str, int]]] = dict
    """Returns the number of devices by spread device."""
    leaks: Callable[[], Mapping[str, LeakCounts]] = dict
    """Returns the latest leak scan, empty before the first one."""
    leak_detection: Callable[[], LeakDetection] = LeakDetection
    polling: Callable[[], bool] = bool
    """Returns whether inotify is unavailable."""


class Metrics:
    """The metrics of one process. May be used in any thread."""

    def __init__(
        self, states: States | None = None, *, exposed: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``exposed`` is False if nobody can scrape them. ``clock`` is that of ``Observer.published``."""
        self._states = states or States()
        self.exposed = exposed
        self._clock = clock
        self._observers: dict[str, ResourceMetrics] = {}
        self._lock = threading.Lock()
        self._pending: list[Callable[[Counters], None]] = []
        """What has changed before ``load``."""
        self._counters: Counters | None = None

    def observer(self, resource: str) -> ResourceMetrics:
        """Return the observer for the plugin of a resource."""
        self._apply(lambda counters: counters.add(resource, driver=False))
        self._observers[resource] = ResourceMetrics(resource, self, self._clock)
        return self._observers[resource]

    def dra_observer(self, resource: str) -> DraObserver:
        """Return the observer for the DRA driver of a resource: that of ``observer``, which was called before."""
        self._apply(lambda counters: counters.add(resource, driver=True))
        return self._observers[resource]

    def node_problem(self, task: str, count: int) -> None:
        """Record whether a task that writes something for the Node fails: 0 or 1."""
        self.set("node_problem", count, task)

    def node_request(self, verb: str, resource: str, code: str) -> None:
        """Count a request about the Node; ``code`` is an HTTP status, or ``error`` without one."""
        self.inc("node_requests_total", verb, resource, code)

    def inc(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to the counter or gauge with these values of the labels."""
        self._apply(lambda counters: counters.change(name, "inc", by, labels))

    def set(self, name: str, value: float, *labels: str) -> None:
        """Replace the value of a gauge."""
        self._apply(lambda counters: counters.change(name, "set", value, labels))

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Count a value in a histogram."""
        self._apply(lambda counters: counters.change(name, "observe", value, labels))

    def _apply(self, change: Callable[[Counters], None]) -> None:
        """Make a change, now or when the counters are loaded."""
        with self._lock:
            if self._counters is not None:
                change(self._counters)
            elif self.exposed:
                self._pending.append(change)

    def load(self) -> Counters:
        """Import prometheus_client, and return the counters. To be called soon after the start: changes add up."""
        from aosp_plugin.framework.service.counters import Counters  # noqa: PLC0415 - after the start, see there

        with self._lock:
            if self._counters is None:
                self._counters = Counters(self._states, self._observers)
                for change in self._pending:
                    change(self._counters)
                self._pending.clear()
            return self._counters

    def exposition(self) -> tuple[str, bytes]:
        """Return content type and text for Prometheus. May be called in any thread, also if the event loop is stuck."""
        from prometheus_client import generate_latest  # noqa: PLC0415 - as above

        return CONTENT_TYPE, generate_latest(self.load().registry)


class ResourceMetrics(Observer, DraObserver):
    """The observer of one resource's device plugin or DRA driver."""

    def __init__(self, resource: str, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._resource = resource
        self._metrics = metrics
        self._clock = clock
        self._changed_since: float | None = None
        """When the first change happened that the kubelet does not know yet."""
        self.snapshot: Snapshot | None = None
        """The devices as of the latest change."""
        self.allocatable: int | None = None
        """The kubelet's number of healthy devices."""

    def scanned(self, result: Literal["ok", "failed", "hung"], seconds: float) -> None:
        """Count a scan, and its duration unless it hangs."""
        self._metrics.inc("scans_total", self._resource, result)
        if result != "hung":
            self._metrics.observe("scan_duration_seconds", seconds, self._resource)

    def host_updated(self, result: Literal["ok", "failed"]) -> None:
        """Count an update of the host."""
        self._metrics.inc("host_updates_total", self._resource, result)

    def published(self, snapshot: Snapshot, since: float | None) -> None:
        """Keep the snapshot."""
        self.snapshot = snapshot
        if self._changed_since is None:
            self._changed_since = since

    def registration(self, result: Literal["ok", "failed", "refused"]) -> None:
        """Count an attempt to register."""
        self._metrics.inc("registrations_total", self._resource, result)
        self._metrics.set("registered", result == "ok", self._resource)

    def unregistered(self) -> None:
        """Record the end of a registration."""
        self._metrics.set("registered", 0, self._resource)

    def lost_by_kubelet(self) -> None:
        """Count a registration that ended because the kubelet had lost the devices."""
        self._metrics.inc("lost_by_kubelet_total", self._resource)

    def confirmed(self, allocatable: int | None) -> None:
        """Keep the kubelet's number of healthy devices."""
        self.allocatable = allocatable

    def other_plugins(self, count: int) -> None:
        """Record the number of other plugins of the resource."""
        self._metrics.set("other_plugins", count, self._resource)

    def kubelet_restarted(self) -> None:
        """Count a kubelet restart."""
        self._metrics.inc("kubelet_restarts_total", self._resource)

    def stream_opened(self) -> None:
        """Count an opened stream."""
        self._metrics.inc("streams_open", self._resource)

    def stream_closed(self) -> None:
        """Count a closed stream."""
        self._metrics.inc("streams_open", self._resource, by=-1)

    def sent(self, size: int, *, first: bool) -> None:
        """Count a message. The first one of a stream is no update: its latency would include the kubelet's absence."""
        self._metrics.inc("messages_sent_total", self._resource)
        self._metrics.set("message_bytes", size, self._resource)
        if self._changed_since is not None and not first:
            latency = self._clock() - self._changed_since
            self._metrics.observe("update_latency_seconds", latency, self._resource)
        self._changed_since = None

    def answered(self, rpc: str, code: str, seconds: float) -> None:
        """Count Allocate and PreStartContainer requests."""
        if rpc == "Allocate":
            self._metrics.inc("allocations_total", self._resource, code)
            self._metrics.observe("allocation_duration_seconds", seconds, self._resource)
        elif rpc == "PreStartContainer":
            result = "ok" if code == "OK" else "failed"
            self._metrics.inc("recreations_total", self._resource, result)

    def prepared(self, result: Literal["ok", "failed"], seconds: float) -> None:
        """Count a preparation, and its duration."""
        self._metrics.inc("claim_prepares_total", self._resource, result)
        self._metrics.observe("claim_prepare_duration_seconds", seconds, self._resource)

    def unprepared(self, result: Literal["ok", "failed"], seconds: float) -> None:
        """Count an unpreparation, and its duration."""
        self._metrics.inc("claim_unprepares_total", self._resource, result)
        self._metrics.observe("claim_unprepare_duration_seconds", seconds, self._resource)

    def claims_changed(self, prepared: int) -> None:
        """Record the number of prepared claims."""
        self._metrics.set("claims_prepared", prepared, self._resource)

    def waited_for_device(self, seconds: float) -> None:
        """Record how long a preparation waited for a device of another claim."""
        self._metrics.observe("claim_device_wait_seconds", seconds, self._resource)

    def api_request(self, verb: str, resource: str, code: str) -> None:
        """Count a request to the API server."""
        self._metrics.inc("api_requests_total", self._resource, verb, resource, code)

    def slices(self, wanted: int, confirmed: int) -> None:
        """Record the numbers of slices."""
        self._metrics.set("slices_wanted", wanted, self._resource)
        self._metrics.set("slices_confirmed", confirmed, self._resource)

    def slices_repaired(self, reason: Literal["deleted", "changed"]) -> None:
        """Count a slice that was written again."""
        self._metrics.inc("slice_repairs_total", self._resource, reason)

    def reconciled(self, kind: Repaired, result: Literal["ok", "failed"]) -> None:
        """Count a repair."""
        self._metrics.inc("claim_repairs_total", self._resource, kind, result)
