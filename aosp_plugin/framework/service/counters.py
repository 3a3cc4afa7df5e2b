"""The metrics of ``metrics`` as prometheus_client has them: name, help, labels and first series of each.

Importing this takes 25 ms and 2 MB, mostly for prometheus_client's HTTP servers: ``Metrics.load`` does it after the
start.
"""

from __future__ import annotations

import itertools
import platform
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import GaugeMetricFamily

from aosp_plugin import __version__
from aosp_plugin.framework.observer import Repaired
from aosp_plugin.framework.service.metrics import CODES, LeakDetectionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aosp_plugin.framework.service.metrics import ResourceMetrics, States

disable_created_metrics()  # type: ignore[no-untyped-call] # a series for the time at which each counter was created

_ALLOCATION_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_UPDATE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SCAN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)
_allocation_histogram = partial(Histogram, buckets=_ALLOCATION_SECONDS)
_update_histogram = partial(Histogram, buckets=_UPDATE_SECONDS)
_scan_histogram = partial(Histogram, buckets=_SCAN_SECONDS)
_claim_histogram = partial(Histogram, buckets=_CLAIM_SECONDS)

_OK_OR_FAILED = {"result": ("ok", "failed")}
_REQUEST: dict[str, Sequence[str]] = {"verb": (), "object": (), "code": ()}


class _Event(NamedTuple):
    """A metric that events change."""

    create: Callable[..., Counter | Gauge | Histogram]
    name: str
    """Without the prefix of all names."""
    help: str
    labels: Mapping[str, Sequence[str]] = {}
    """The labels beside the resource with their values, as far as they are known. Their series exist from the start,
    because ``rate`` ignores the first value of a series."""


_OF_RESOURCES = (
    _Event(Counter, "allocations_total", "Allocate requests by gRPC status code.", {"code": CODES}),
    _Event(_allocation_histogram, "allocation_duration_seconds", "Duration of Allocate requests."),
    _Event(Counter, "recreations_total", "PreStartContainer requests, which recreate devices.", _OK_OR_FAILED),
    _Event(
        Counter,
        "registrations_total",
        "Attempts to register with the kubelet.",
        {"result": ("ok", "failed", "refused")},
    ),
    _Event(Gauge, "registered", "1 while the plugin is registered with the kubelet."),
    _Event(Counter, "kubelet_restarts_total", "Registrations with a restarted kubelet."),
    _Event(Counter, "lost_by_kubelet_total", "Registrations that ended because the kubelet had lost the devices."),
    _Event(Gauge, "other_plugins", "Other plugins of the resource on this node."),
    _Event(Gauge, "streams_open", "Open ListAndWatch streams."),
    _Event(Counter, "messages_sent_total", "Device lists sent on ListAndWatch streams."),
    _Event(Gauge, "message_bytes", "Size of the device list that was sent last."),
    _Event(_update_histogram, "update_latency_seconds", "Time from a file event to the device list that contains it."),
    _Event(Counter, "scans_total", "Device scans by result.", {"result": ("ok", "failed", "hung")}),
    _Event(_scan_histogram, "scan_duration_seconds", "Duration of device scans."),
    _Event(Counter, "host_updates_total", "Updates of the host after device scans by result.", _OK_OR_FAILED),
)
_OF_DRIVERS = (
    _Event(Counter, "claim_prepares_total", "Preparations of claims by result.", _OK_OR_FAILED),
    _Event(_claim_histogram, "claim_prepare_duration_seconds", "Duration of preparations of claims."),
    _Event(Counter, "claim_unprepares_total", "Unpreparations of claims by result.", _OK_OR_FAILED),
    _Event(_claim_histogram, "claim_unprepare_duration_seconds", "Duration of unpreparations."),
    _Event(
        _claim_histogram,
        "claim_device_wait_seconds",
        "Time that preparations waited for a device of another claim.",
    ),
    _Event(Gauge, "claims_prepared", "Claims that are prepared."),
    _Event(Gauge, "slices_wanted", "ResourceSlices that should exist."),
    _Event(Gauge, "slices_confirmed", "ResourceSlices that exist as they should."),
    _Event(
        Counter,
        "slice_repairs_total",
        "ResourceSlices that were written again after a change by another client.",
        {"reason": ("deleted", "changed")},
    ),
    _Event(
        Counter,
        "claim_repairs_total",
        "Repairs of claims, CDI specs and mounts.",
        {"kind": get_args(Repaired), **_OK_OR_FAILED},
    ),
    _Event(Counter, "api_requests_total", "Requests to the API server by HTTP status.", _REQUEST),
)
_OF_THE_NODE = (
    _Event(
        Gauge, "node_problem", "1 while Events, the startup taint or the feature file cannot be written.", {"task": ()}
    ),
    _Event(Counter, "node_requests_total", "Requests to the API server about the Node by HTTP status.", _REQUEST),
)


class Counters:
    """The metrics of one process: those that events change, and states that are read at each scrape."""

    def __init__(self, states: States, observers: Mapping[str, ResourceMetrics]) -> None:
        """``observers`` are those of the resources, by name; some may follow."""
        self.registry = CollectorRegistry()
        self._metrics = {
            event.name: event.create(
                f"aosp_plugin_{event.name}", event.help, (*common, *event.labels), registry=self.registry
            )
            for events, common in ((_OF_RESOURCES, ["resource"]), (_OF_DRIVERS, ["resource"]), (_OF_THE_NODE, []))
            for event in events
        }
        polling = Gauge(
            "aosp_plugin_polling", "1 if inotify is unavailable and directories are polled.", registry=self.registry
        )
        polling.set_function(states.polling)
        build = Gauge(
            "aosp_plugin_build_info",
            "Version of the plugin and of Python; always 1.",
            ("version", "python"),
            registry=self.registry,
        )
        build.labels(__version__, platform.python_version()).set(1)
        self.registry.register(_StateCollector(states, observers))
        ProcessCollector(registry=self.registry)

    def add(self, resource: str, *, driver: bool) -> None:
        """Create the series of a resource, or those of its DRA driver."""
        for event in _OF_DRIVERS if driver else _OF_RESOURCES:
            for values in itertools.product(*event.labels.values()):
                self._metrics[event.name].labels(resource, *values)

    def change(self, name: str, operation: str, value: float, labels: tuple[str, ...]) -> None:
        """Call ``inc``, ``set`` or ``observe`` of the series with these values of the labels."""
        getattr(self._metrics[name].labels(*labels), operation)(value)


class _StateCollector:
    """Reads the states at each scrape. A state that is unknown has no series."""

    def __init__(self, states: States, observers: Mapping[str, ResourceMetrics]) -> None:
        self._states = states
        self._observers = observers

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics with their current values."""
        states = self._states
        yield from self._published()
        yield _gauge(
            "kubelet_allocatable",
            "Healthy devices that the kubelet has.",
            {name: each.allocatable for name, each in self._observers.items() if each.allocatable is not None}.items(),
        )
        yield _gauge("devices_allocated", "Devices allocated to pods, in any state.", states.allocated().items())
        yield _gauge("devices_gone", "Devices allocated to pods that no longer exist.", states.gone().items())
        yield _gauge("devices_expected", "Devices that the configuration provisions.", states.expected.items())
        spread = {(name, path): count for name, counts in states.spread().items() for path, count in counts.items()}
        yield _gauge(
            "spread_devices", "Devices, healthy or not, by their spread device.", spread.items(), ("resource", "device")
        )
        yield from self._leaks()

    def _published(self) -> Iterator[GaugeMetricFamily]:
        known = dict.fromkeys(("", *self._states.reasons), 0)
        snapshots = {name: observer.snapshot for name, observer in self._observers.items()}
        devices = {
            (name, "unhealthy" if reason else "healthy", reason): count
            for name, snapshot in snapshots.items()
            for reason, count in {**known, **(snapshot.reasons if snapshot else {})}.items()
        }
        yield _gauge(
            "devices", "Devices in the kubelet's list by health.", devices.items(), ("resource", "health", "reason")
        )
        yield _gauge(
            "devices_truncated",
            "Devices missing in the kubelet's list because of its message size limit.",
            {name: snapshot.truncated if snapshot else 0 for name, snapshot in snapshots.items()}.items(),
        )

    def _leaks(self) -> Iterator[GaugeMetricFamily]:
        leaks, detection = self._states.leaks(), self._states.leak_detection()
        yield _gauge(
            "leaked_devices",
            "Devices held open by a process outside the pods they belong to.",
            {name: counts.leaked_devices for name, counts in leaks.items()}.items(),
        )
        unreadable = [((), max(counts.unreadable for counts in leaks.values()))] if leaks else []
        yield _gauge("leak_unreadable_processes", "Processes that leak detection could not inspect.", unreadable, ())
        states = [(state, state == detection.state) for state in get_args(LeakDetectionState)]
        yield _gauge("leak_detection", "1 for the state of leak detection, else 0.", states, ("state",))
        age = [] if detection.age is None else [((), detection.age)]
        yield _gauge("leak_scan_age_seconds", "Time since the last leak scan ended.", age, ())


def _gauge(
    name: str,
    help_text: str,
    values: Iterable[tuple[str | tuple[str, ...], float]],
    labels: tuple[str, ...] = ("resource",),
) -> GaugeMetricFamily:
    """Return a gauge; ``values`` are preceded by the value of its label, or those of its labels."""
    family = GaugeMetricFamily(f"aosp_plugin_{name}", help_text, labels=labels)
    for key, value in values:
        family.add_metric([key] if isinstance(key, str) else key, value)
    return family
