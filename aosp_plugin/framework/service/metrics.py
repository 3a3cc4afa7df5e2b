"""Prometheus metrics of the process. ``docs/metrics.md`` lists them.

``event_metrics`` counts events as they happen. States (devices, leaks, allocations) are read at each scrape. No series
is per device, because a host may have tens of thousands.
"""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from aosp_plugin import __version__
from aosp_plugin.framework.service.counts import Registry
from aosp_plugin.framework.service.event_metrics import EventMetrics, ResourceMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Protocol

    from prometheus_client import Metric
    from prometheus_client.metrics_core import GaugeMetricFamily

    from aosp_plugin.framework.dra.observer import DraObserver
    from aosp_plugin.framework.observer import Observer
    from aosp_plugin.framework.service.dra_metrics import DraMetrics
    from aosp_plugin.framework.service.node_metrics import NodeMetrics

    class LeakCounts(Protocol):
        """Result of a leak scan of one resource."""

        @property
        def leaked_devices(self) -> int:
            """Number of leaked devices."""

        @property
        def unreadable(self) -> int:
            """Number of processes that could not be inspected."""


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus text format (prometheus.io/docs/instrumenting/exposition_formats)."""

LeakDetectionState = Literal["off", "complete", "pending", "incomplete", "failing"]
"""From the best to the worst: ``pending`` until the first scan has ended, ``incomplete`` if it could not inspect or
attribute some processes, ``failing`` while scans fail or hang, so that the result is outdated."""


class LeakDetection(NamedTuple):
    """Whether leaks are detected."""

    state: LeakDetectionState = "off"
    age: float | None = None
    """Seconds since the last scan ended; None before."""


class Metrics:
    """The metrics of one process."""

    def __init__(
        self,
        reasons: Iterable[str] = (),
        *,
        allocated: Callable[[], Mapping[str, int]] = dict,
        gone: Callable[[], Mapping[str, int]] = dict,
        expected: Mapping[str, int] | None = None,
        spread: Callable[[], Mapping[str, Mapping[str, int]]] = dict,
        leaks: Callable[[], Mapping[str, LeakCounts]] = dict,
        leak_detection: Callable[[], LeakDetection] = LeakDetection,
        polling: Callable[[], bool] = bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the metrics.

        ``reasons`` are the health reasons of the backend; each has a series from the start. By resource, and without
        resources for which it is unknown: ``allocated`` returns the number of devices that pods have, ``gone`` how many
        of them no longer exist; ``expected`` is the number of devices that are provisioned; ``spread`` returns the
        number of devices by spread device; ``leaks`` returns the latest leak scan, empty before the first one.
        ``leak_detection`` returns whether leaks are detected, ``polling`` whether inotify is unavailable.
        ``clock`` is the clock of ``Observer.published``. The functions are called at each scrape, in its thread.
        """
        self._reasons = ("", *reasons)
        self._counts = (
            ("aosp_plugin_devices_allocated", "Devices allocated to pods, in any state.", allocated),
            ("aosp_plugin_devices_gone", "Devices allocated to pods that no longer exist.", gone),
            ("aosp_plugin_devices_expected", "Devices that the configuration provisions.", lambda: expected or {}),
        )
        self._spread = spread
        self._leaks = leaks
        self._leak_detection = leak_detection
        self._polling = polling
        self._clock = clock
        self._registry = Registry()
        self._observers: dict[str, ResourceMetrics] = {}
        self._events = EventMetrics(self._registry)
        self._dra: DraMetrics | None = None

    def observer(self, resource: str) -> ResourceMetrics:
        """Return the observer for the plugin of a resource."""
        self._observers[resource] = ResourceMetrics(resource, self._events, self._reasons, self._clock)
        return self._observers[resource]

    def dra_observer(self, resource: str, registrations: Observer | None = None) -> DraObserver:
        """Return the observer for the DRA driver of a resource.

        ``registrations`` gets its registrations instead of the observer that ``observer`` has returned.
        """
        from aosp_plugin.framework.service.dra_metrics import (  # noqa: PLC0415 - only where DRA is on
            DraMetrics,
            DraResourceMetrics,
        )

        if self._dra is None:
            self._dra = DraMetrics(self._registry)
        return DraResourceMetrics(resource, self._dra, registrations or self._observers[resource])

    def node_metrics(self) -> NodeMetrics:
        """Return the metrics of what is written for the Node; to be called once."""
        from aosp_plugin.framework.service.node_metrics import NodeMetrics  # noqa: PLC0415 - only where it is on

        return NodeMetrics(self._registry)

    def exposition(self) -> tuple[str, bytes]:
        """Return content type and text for Prometheus. May be called in any thread, also if the event loop is stuck."""
        from prometheus_client import generate_latest  # noqa: PLC0415 - see ``counts``

        return CONTENT_TYPE, generate_latest(self)  # it calls ``collect``

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        from prometheus_client import ProcessCollector  # noqa: PLC0415 - see ``counts``

        yield from self._registry.collect()
        yield from self._collect_states()
        yield from ProcessCollector(registry=None).collect()

    def _collect_states(self) -> Iterator[Metric]:
        """Yield the metrics that are read at each scrape."""
        yield from self._collect_devices()
        yield from self._collect_kubelet_view()
        yield from self._collect_leaks()
        for name, help_text, counts in self._counts:
            gauge = _gauge(name, help_text, "resource")
            for resource, count in counts().items():
                gauge.add_metric([resource], count)
            yield gauge
        spread = _gauge(
            "aosp_plugin_spread_devices", "Devices, healthy or not, by their spread device.", "resource", "device"
        )
        for resource, devices in self._spread().items():
            for device, count in devices.items():
                spread.add_metric([resource, device], count)
        yield spread
        polling = _gauge("aosp_plugin_polling", "1 if inotify is unavailable and directories are polled.")
        polling.add_metric([], self._polling())
        yield polling
        build = _gauge("aosp_plugin_build_info", "Version of the plugin and of Python; always 1.", "version", "python")
        build.add_metric([__version__, platform.python_version()], 1)
        yield build

    def _collect_devices(self) -> Iterator[Metric]:
        devices = _gauge(
            "aosp_plugin_devices", "Devices in the kubelet's list by health.", "resource", "health", "reason"
        )
        truncated = _gauge(
            "aosp_plugin_devices_truncated",
            "Devices missing in the kubelet's list because of its message size limit.",
            "resource",
        )
        for resource, observer in self._observers.items():
            for reason, count in observer.devices().items():
                devices.add_metric([resource, "unhealthy" if reason else "healthy", reason], count)
            truncated.add_metric([resource], observer.snapshot.truncated if observer.snapshot else 0)
        yield devices
        yield truncated

    def _collect_kubelet_view(self) -> Iterator[Metric]:
        allocatable = _gauge("aosp_plugin_kubelet_allocatable", "Healthy devices that the kubelet has.", "resource")
        others = _gauge("aosp_plugin_other_plugins", "Other plugins of the resource on this node.", "resource")
        for resource, observer in self._observers.items():
            if observer.allocatable is not None:
                allocatable.add_metric([resource], observer.allocatable)
            others.add_metric([resource], observer.others)
        yield allocatable
        yield others

    def _collect_leaks(self) -> Iterator[Metric]:
        leaked = _gauge(
            "aosp_plugin_leaked_devices", "Devices held open by a process outside the pods they belong to.", "resource"
        )
        unreadable = _gauge("aosp_plugin_leak_unreadable_processes", "Processes that leak detection could not inspect.")
        leaks = self._leaks()
        for resource, counts in leaks.items():
            leaked.add_metric([resource], counts.leaked_devices)
        if leaks:
            unreadable.add_metric([], max(counts.unreadable for counts in leaks.values()))
        yield leaked
        yield unreadable
        detection = self._leak_detection()
        states = _gauge("aosp_plugin_leak_detection", "1 for the state of leak detection, else 0.", "state")
        for state in get_args(LeakDetectionState):
            states.add_metric([state], state == detection.state)
        yield states
        age = _gauge("aosp_plugin_leak_scan_age_seconds", "Time since the last leak scan ended.")
        if detection.age is not None:
            age.add_metric([], detection.age)
        yield age


def _gauge(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    from prometheus_client.metrics_core import GaugeMetricFamily  # noqa: PLC0415 - see ``counts``

    return GaugeMetricFamily(name, help_text, labels=labels)
