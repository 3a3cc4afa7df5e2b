"""Prometheus metrics of the process. ``make docs`` writes them to ``docs/monitoring.md``.

The observers count events as they happen. States, such as the devices, are read at each scrape. No series is per
device, because a host may have tens of thousands.

Importing prometheus_client takes 25 ms and 2 MB, mostly for its HTTP servers: ``Metrics.load`` does it after the start.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from aosp_plugin import __version__
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.observer import Observer, Repaired

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import GaugeMetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus text format (prometheus.io/docs/instrumenting/exposition_formats)."""

CODES = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "INTERNAL", "UNKNOWN")
"""Status codes of Allocate that the framework answers; a backend may have more."""

_ALLOCATION_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_UPDATE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SCAN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)

_OK_OR_FAILED = {"result": ("ok", "failed")}
_REQUEST: dict[str, Sequence[str]] = {"verb": (), "object": (), "code": ()}


class _Declared(NamedTuple):
    """A metric that events change."""

    kind: Literal["Counter", "Gauge", "Histogram"]
    name: str
    """Without the prefix of all names."""
    help: str
    labels: Mapping[str, Sequence[str]] = {}
    """The labels beside the resource with their values, as far as they are known. Their series exist from the start,
    because ``rate`` ignores the first value of a series."""
    buckets: Sequence[float] = ()


_OF_RESOURCES = (
    _Declared(
        "Counter",
        "allocations_total",
        "Allocate requests by gRPC status code: `OK`, `INVALID_ARGUMENT`, `NOT_FOUND` (unknown device), "
        "`FAILED_PRECONDITION` (unhealthy device), `INTERNAL` (the host failed), `UNKNOWN` (a bug of the "
        "plugin), and those of a backend's own errors.",
        {"code": CODES},
    ),
    _Declared(
        "Histogram", "allocation_duration_seconds", "Duration of Allocate requests.", buckets=_ALLOCATION_SECONDS
    ),
    _Declared("Counter", "recreations_total", "Recreations by PreStartContainer: `ok`, `failed`.", _OK_OR_FAILED),
    _Declared(
        "Counter",
        "registrations_total",
        "Attempts to register: `ok` (the kubelet has opened a stream, too), `failed` (retried), `refused` (for good).",
        {"result": ("ok", "failed", "refused")},
    ),
    _Declared("Gauge", "registered", "1 while the plugin is registered and the kubelet has an open stream, else 0."),
    _Declared("Counter", "kubelet_restarts_total", "Registrations with a restarted kubelet."),
    _Declared(
        "Counter",
        "lost_by_kubelet_total",
        "Registrations that the plugin ended because the kubelet had lost the devices although its stream was open.",
    ),
    _Declared("Gauge", "other_plugins", "Other plugins of the same resource on this node."),
    _Declared("Gauge", "streams_open", "Open ListAndWatch streams of the kubelet and of other clients."),
    _Declared("Counter", "messages_sent_total", "Device lists sent on ListAndWatch streams."),
    _Declared("Gauge", "message_bytes", "Size of the device list that was sent last. The kubelet accepts 4 MiB."),
    _Declared(
        "Histogram",
        "update_latency_seconds",
        "Time from the first file event of a change to the device list with it. Others are not measured.",
        buckets=_UPDATE_SECONDS,
    ),
    _Declared(
        "Counter",
        "scans_total",
        "Device scans: `ok`, `failed`; `hung` after 10 s, and also one of the others if it returns.",
        {"result": ("ok", "failed", "hung")},
    ),
    _Declared("Histogram", "scan_duration_seconds", "Duration of scans that have returned.", buckets=_SCAN_SECONDS),
    _Declared(
        "Counter",
        "host_updates_total",
        "Updates of phones, CDI specs and provisioned devices after scans: `ok`, `failed` (retried).",
        _OK_OR_FAILED,
    ),
)
_OF_DRIVERS = (
    _Declared(
        "Counter",
        "claim_prepares_total",
        "Preparations of claims: `ok`, `failed`. A pod whose claim fails is tried again after 60 to 90 s.",
        _OK_OR_FAILED,
    ),
    _Declared(
        "Histogram",
        "claim_prepare_duration_seconds",
        "Duration of preparations, including waits for the API server and for a device of another claim.",
        buckets=_CLAIM_SECONDS,
    ),
    _Declared("Counter", "claim_unprepares_total", "Unpreparations: `ok`, `failed` (retried).", _OK_OR_FAILED),
    _Declared("Histogram", "claim_unprepare_duration_seconds", "Duration of unpreparations.", buckets=_CLAIM_SECONDS),
    _Declared(
        "Histogram", "claim_device_wait_seconds", "Waits for a device that another claim had.", buckets=_CLAIM_SECONDS
    ),
    _Declared("Gauge", "claims_prepared", "Claims that are prepared on the node."),
    _Declared("Gauge", "slices_wanted", "ResourceSlices that should exist for the node's devices."),
    _Declared("Gauge", "slices_confirmed", "ResourceSlices of these that the API server has as they should be."),
    _Declared(
        "Counter",
        "slice_repairs_total",
        "ResourceSlices written again: others have `changed` or `deleted` them, as each kubelet does when it starts.",
        {"reason": ("deleted", "changed")},
    ),
    _Declared(
        "Counter",
        "claim_repairs_total",
        "Repairs: a `claim` that no longer exists was unprepared; a lost CDI `spec` or `mount` was restored.",
        {"kind": get_args(Repaired), **_OK_OR_FAILED},
    ),
    _Declared("Counter", "api_requests_total", "Requests to the API server by HTTP status, or `error`.", _REQUEST),
)
_OF_THE_NODE = (
    _Declared(
        "Gauge",
        "node_problem",
        "1 while the plugin fails at `events`, `startup_taint` or `feature_file`, else 0; absent for what is off.",
        {"task": ()},
    ),
    _Declared(
        "Counter",
        "node_requests_total",
        "Requests for Events and the startup taint by HTTP status, or `error`.",
        _REQUEST,
    ),
)


class StateGauge(NamedTuple):
    """A metric that is read at each scrape."""

    name: str
    help: str
    values: Mapping[Any, float]
    """By the values of the labels, a tuple; empty if the state is unknown."""
    labels: tuple[str, ...] = ("resource",)


class Metrics:
    """The metrics of one process. May be used in any thread."""

    def __init__(
        self,
        states: Callable[[], Iterable[StateGauge]] = tuple,
        *,
        reasons: Sequence[str] = (),
        polling: Callable[[], bool] = bool,
        exposed: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``states`` and ``polling``, whether inotify is unavailable, are called at each scrape, in its thread.

        ``reasons`` are the health reasons of the backend; each has a series from the start. ``exposed`` is False if
        nobody can scrape the metrics. ``clock`` is that of ``Observer.published``.
        """
        self._states = states
        self._reasons = reasons
        self._polling = polling
        self.exposed = exposed
        self._clock = clock
        self._observers: dict[str, ResourceMetrics] = {}
        self._lock = threading.Lock()
        self._pending: list[tuple[str, str, float, tuple[str, ...]]] = []
        """What has changed before ``load``."""
        self._metrics: dict[str, Any] = {}
        self._registry: CollectorRegistry | None = None

    def observer(self, resource: str, *, is_driver: bool = False) -> ResourceMetrics:
        """Return the observer for the device plugin or DRA driver of a resource."""
        for each in (*_OF_RESOURCES, *(_OF_DRIVERS if is_driver else ())):
            for values in itertools.product(*each.labels.values()):
                self._change(each.name, "", 0, (resource, *values))
        self._observers[resource] = ResourceMetrics(resource, self, self._clock)
        return self._observers[resource]

    def node_problem(self, task: str, count: int) -> None:
        """Record whether a task that writes something for the Node fails: 0 or 1."""
        self.set("node_problem", count, task)

    def node_request(self, verb: str, resource: str, code: str) -> None:
        """Count a request about the Node; ``code`` is an HTTP status, or ``error`` without one."""
        self.inc("node_requests_total", verb, resource, code)

    def inc(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to the counter or gauge with these values of the labels."""
        self._change(name, "inc", by, labels)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Replace the value of a gauge."""
        self._change(name, "set", value, labels)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Count a value in a histogram."""
        self._change(name, "observe", value, labels)

    def load(self) -> CollectorRegistry:
        """Import prometheus_client, and return its registry. To be called soon after the start: changes add up."""
        import prometheus_client as library  # noqa: PLC0415 - after the start, see above

        with self._lock:
            if self._registry is None:
                library.disable_created_metrics()  # type: ignore[no-untyped-call] # a series for each time of creation
                registry = library.CollectorRegistry()
                registry.register(self)
                for each in (*_OF_RESOURCES, *_OF_DRIVERS, *_OF_THE_NODE):
                    labels = each.labels if each in _OF_THE_NODE else ("resource", *each.labels)
                    create = partial(getattr(library, each.kind), f"aosp_plugin_{each.name}", each.help, labels)
                    options = {"buckets": each.buckets} if each.buckets else {}
                    self._metrics[each.name] = create(registry=registry, **options)
                library.ProcessCollector(registry=registry)
                self._registry = registry
                for change in self._pending:
                    self._apply(*change)
                self._pending.clear()
            return self._registry

    def exposition(self) -> tuple[str, bytes]:
        """Return content type and text for Prometheus. May be called in any thread, also if the event loop is stuck."""
        from prometheus_client import generate_latest  # noqa: PLC0415 - as above

        return CONTENT_TYPE, generate_latest(self.load())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the states with their current values, for prometheus_client. A state that is unknown has no series."""
        from prometheus_client.metrics_core import GaugeMetricFamily  # noqa: PLC0415 - as above

        for gauge in (*self._own_states(), *self._states()):
            family = GaugeMetricFamily(f"aosp_plugin_{gauge.name}", gauge.help, labels=gauge.labels)
            for labels, value in gauge.values.items():
                family.add_metric(labels, value)
            yield family

    def _own_states(self) -> Iterator[StateGauge]:
        yield StateGauge(
            "polling", "1 while inotify is unavailable and directories are polled, else 0.", {(): self._polling()}, ()
        )
        version = {(__version__, platform.python_version()): 1}
        yield StateGauge("build_info", "Version of the plugin and of Python; always 1.", version, ("version", "python"))
        yield StateGauge("memory_limit_bytes", "Memory limit in cgroup v2, else `+Inf`.", {(): memory_limit()}, ())
        known = dict.fromkeys(("", *self._reasons), 0)
        snapshots = {name: observer.snapshot for name, observer in self._observers.items()}
        devices = {
            (name, "unhealthy" if reason else "healthy", reason): count
            for name, snapshot in snapshots.items()
            for reason, count in {**known, **(snapshot.reasons if snapshot else {})}.items()
        }
        yield StateGauge(
            "devices",
            "Devices in the kubelet's list: `healthy`, or `unhealthy` with a reason. Every reason has a series.",
            devices,
            ("resource", "health", "reason"),
        )
        yield StateGauge(
            "devices_truncated",
            "Devices that the kubelet's list has no room for: its limit is 4 MiB. `aosp_plugin_devices` lacks them.",
            {(name,): snapshot.truncated if snapshot else 0 for name, snapshot in snapshots.items()},
        )
        allocatable = {(name,): each.allocatable for name, each in self._observers.items()}
        yield StateGauge(
            "kubelet_allocatable",
            "Healthy devices that the kubelet has, according to podresources: fewer than the plugin's if it has "
            "lost some; absent while unknown, and while it has those of another plugin.",
            {name: count for name, count in allocatable.items() if count is not None},
        )

    def _change(self, name: str, operation: str, value: float, labels: tuple[str, ...]) -> None:
        """Call ``inc``, ``set`` or ``observe`` of a series, now or when the metrics are loaded."""
        with self._lock:
            if self._registry is not None:
                self._apply(name, operation, value, labels)
            elif self.exposed:
                self._pending.append((name, operation, value, labels))

    def _apply(self, name: str, operation: str, value: float, labels: tuple[str, ...]) -> None:
        """Without an operation, the series only begins to exist."""
        series = self._metrics[name].labels(*labels)
        if operation:
            getattr(series, operation)(value)


def memory_limit(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the memory limit of this process's cgroup in bytes: infinity for ``max``, and with cgroup v1."""
    with contextlib.suppress(OSError, ValueError):
        path = own.read_text(encoding="utf-8").rpartition("0::/")[2].strip()
        return int((root / path / "memory.max").read_text(encoding="ascii"))
    return math.inf


class ResourceMetrics(Observer):
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
