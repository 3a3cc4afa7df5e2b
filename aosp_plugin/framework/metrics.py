"""Prometheus metrics of the process, in a registry of their own. ``make generate`` lists them in docs/monitoring.md.

Whoever notices an event counts it. No series is per device, because a host may have tens of thousands.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import CounterMetricFamily

from aosp_plugin import __version__
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.service import logs

disable_created_metrics()  # type: ignore[no-untyped-call] # a series for each time of creation

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus text format (prometheus.io/docs/instrumenting/exposition_formats)."""

CODES = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "INTERNAL", "UNKNOWN")
"""Status codes of Allocate that the framework answers; a backend may have more."""

PRE_START_CODES = (*CODES, "DEADLINE_EXCEEDED")
"""The same of PreStartContainer."""

Result = Literal["ok", "failed"]

Repaired = Literal["claim", "record", "spec", "mount"]
"""What a DRA driver has repaired on the host."""

_ALLOCATION_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_UPDATE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SCAN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)

_RESULTS = get_args(Result)

M = TypeVar("M", bound=MetricWrapperBase)


class _Series:
    """Metrics with the label ``resource``, and the known values of their further labels."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self._options: Any = {"namespace": prefix, "registry": registry}
        self._known: list[tuple[MetricWrapperBase, Sequence[Sequence[str]]]] = []

    def counter(self, name: str, text: str, /, **known: Sequence[str]) -> Counter:
        """Declare a counter."""
        return self._declared(Counter(name, text, ["resource", *known], **self._options), *known.values())

    def gauge(self, name: str, text: str) -> Gauge:
        """Declare a gauge."""
        return self._declared(Gauge(name, text, ["resource"], **self._options))

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        """Declare a histogram."""
        return self._declared(Histogram(name, text, ["resource"], buckets=buckets, **self._options))

    def begin(self, resource: str) -> None:
        """Create the series of a resource, because ``rate`` ignores the first value of a series."""
        for metric, known in self._known:
            for values in itertools.product(*known):
                metric.labels(resource, *values)

    def _declared(self, metric: M, *known: Sequence[str]) -> M:
        self._known.append((metric, known))
        return metric


class Metrics:
    """The metrics of one process: each is declared here, and counted where it happens. For any thread."""

    def __init__(
        self, prefix: str = "device_plugin", *, reasons: Sequence[str] = (), polling: Callable[[], bool] = bool
    ) -> None:
        """``prefix`` begins all names. ``polling``, whether inotify is unavailable, is called at each scrape.

        ``reasons`` are the health reasons of the backends; each has a series from the start.
        """
        self.registry = CollectorRegistry()
        self._prefix = prefix
        self._reasons = dict.fromkeys(["", *reasons])
        self.registry.register(self)
        of_process = partial(Gauge, namespace=prefix, registry=self.registry)
        of_process("polling", "1 while inotify is unavailable and directories are polled, else 0.").set_function(
            polling
        )
        build_info = of_process("build_info", "Version of the plugin and of Python; always 1.", ["version", "python"])
        build_info.labels(__version__, platform.python_version()).set(1)
        of_process("memory_limit_bytes", "Memory limit in cgroup v2, else `+Inf`.").set_function(memory_limit)
        self.devices = of_process(
            "devices",
            "Devices in the kubelet's list: `healthy`, or `unhealthy` with a reason. Every reason has a series.",
            ["resource", "health", "reason"],
        )
        self.devices_truncated = of_process(
            "devices_truncated",
            f"Devices beyond the 4 MiB limit of the kubelet's list, which `{prefix}_devices` does not count.",
            ["resource"],
        )
        self.kubelet_allocatable = of_process(
            "kubelet_allocatable",
            "Healthy devices that the kubelet has, according to podresources: fewer than the plugin's if it has "
            "lost some; absent while unknown, and while it has those of another plugin.",
            ["resource"],
        )

        self._of_all = of_all = _Series(prefix, self.registry)
        self.allocations = of_all.counter(
            "allocations_total",
            "Allocate requests by gRPC status code: `OK`, `INVALID_ARGUMENT`, `NOT_FOUND` (unknown device), "
            "`FAILED_PRECONDITION` (unhealthy device), `INTERNAL` (the host failed), `UNKNOWN` (a bug of the "
            "plugin), and the codes of a backend's own errors.",
            code=CODES,
        )
        self.allocation_duration = of_all.histogram(
            "allocation_duration_seconds", "Duration of Allocate requests.", _ALLOCATION_SECONDS
        )
        self.pre_starts = of_all.counter(
            "pre_starts_total",
            "PreStartContainer requests by gRPC status code: those of Allocate, and `DEADLINE_EXCEEDED` (the host "
            "hangs). The kubelet tries again.",
            code=PRE_START_CODES,
        )
        self.registrations = of_all.counter(
            "registrations_total",
            "Attempts to register: `ok` (the kubelet has also opened a stream), `failed` (retried).",
            result=_RESULTS,
        )
        self.registered = of_all.gauge(
            "registered", "1 while the plugin is registered and the kubelet has an open stream, else 0."
        )
        self.kubelet_restarts = of_all.counter("kubelet_restarts_total", "Registrations with a restarted kubelet.")
        self.lost_by_kubelet = of_all.counter(
            "lost_by_kubelet_total",
            "Registrations that the plugin ended because the kubelet had lost the devices although its stream "
            "was open.",
        )
        self.other_plugins = of_all.gauge("other_plugins", "Other plugins of the same resource on this node.")
        self.streams_open = of_all.gauge(
            "streams_open", "Open ListAndWatch streams of the kubelet and of other clients."
        )
        self.messages_sent = of_all.counter("messages_sent_total", "Device lists sent on ListAndWatch streams.")
        self.message_bytes = of_all.gauge("message_bytes", "Size of the last device list. The kubelet accepts 4 MiB.")
        self.update_latency = of_all.histogram(
            "update_latency_seconds",
            "Time from the first file event of a change to its device list. Changes without an event do not count.",
            _UPDATE_SECONDS,
        )
        self.scans = of_all.counter(
            "scans_total",
            "Device scans: `ok`, `failed`; `hung` after 10 s, in addition to `ok` or `failed` if the scan returns.",
            result=(*_RESULTS, "hung"),
        )
        self.scan_duration = of_all.histogram(
            "scan_duration_seconds", "Duration of scans that have returned.", _SCAN_SECONDS
        )
        self.host_updates = of_all.counter(
            "host_updates_total",
            "Updates of the host after scans: `ok`, `failed` (retried).",
            result=_RESULTS,
        )

        self._of_drivers = of_drivers = _Series(prefix, self.registry)
        self.claim_prepares = of_drivers.counter(
            "claim_prepares_total",
            "Preparations of claims: `ok`, `refused` (the claim asks for what it cannot have, or was deleted), "
            "`failed`. The kubelet retries both after 60 to 90 s.",
            result=("ok", "refused", "failed"),
        )
        self.claim_prepare_duration = of_drivers.histogram(
            "claim_prepare_duration_seconds",
            "Duration of preparations, including waits for the API server and for a device of another claim.",
            _CLAIM_SECONDS,
        )
        self.claim_unprepares = of_drivers.counter(
            "claim_unprepares_total", "Unpreparations: `ok`, `failed` (retried).", result=_RESULTS
        )
        self.claim_unprepare_duration = of_drivers.histogram(
            "claim_unprepare_duration_seconds", "Duration of unpreparations.", _CLAIM_SECONDS
        )
        self.claim_device_wait = of_drivers.histogram(
            "claim_device_wait_seconds", "Waits for a device that another claim had.", _CLAIM_SECONDS
        )
        self.claims_prepared = of_drivers.gauge("claims_prepared", "Claims that are prepared on the node.")
        self.slices_wanted = of_drivers.gauge(
            "slices_wanted", "ResourceSlices that should exist for the node's devices."
        )
        self.slices_confirmed = of_drivers.gauge(
            "slices_confirmed", "ResourceSlices that the API server has as they should be."
        )
        self.slice_repairs = of_drivers.counter(
            "slice_repairs_total",
            "ResourceSlices written again because others have `changed` or `deleted` them. Each kubelet that starts "
            "deletes them.",
            reason=("deleted", "changed"),
        )
        self.claim_repairs = of_drivers.counter(
            "claim_repairs_total",
            "Repairs: a `claim` that no longer exists was unprepared; a lost `record`, CDI `spec` or `mount` was "
            "restored.",
            kind=get_args(Repaired),
            result=_RESULTS,
        )
        self.api_requests = of_drivers.counter(
            "api_requests_total", "Requests to the API server by HTTP status, or `error`.", verb=(), object=(), code=()
        )
        self.api_request_duration = of_drivers.histogram(
            "api_request_duration_seconds",
            "Time until the API server begins to answer a request, or the request fails.",
            _CLAIM_SECONDS,
        )
        ProcessCollector(registry=self.registry)

    def add(self, resource: str, *, is_driver: bool = False) -> None:
        """Create the series of the device plugin or DRA driver of a resource."""
        self._of_all.begin(resource)
        if is_driver:
            self._of_drivers.begin(resource)
        self.count_devices(resource, Snapshot(0, ()))

    def count_devices(self, resource: str, snapshot: Snapshot) -> None:
        """Count the devices of a resource. For the event loop."""
        self._reasons |= dict.fromkeys(snapshot.reasons)
        for reason in self._reasons:
            series = self.devices.labels(resource, "unhealthy" if reason else "healthy", reason)
            series.set(snapshot.reasons.get(reason, 0))
        self.devices_truncated.labels(resource).set(snapshot.truncated)

    def exposition(self) -> tuple[str, bytes]:
        """Return content type and text for Prometheus."""
        return CONTENT_TYPE, generate_latest(self.registry)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counts that other modules keep, for prometheus_client."""
        yield CounterMetricFamily(
            f"{self._prefix}_log_records_dropped",
            "Log records that were dropped: nobody reads standard error, or it cannot be written.",
            value=logs.dropped(),
        )


def memory_limit(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the memory limit of this process's cgroup in bytes: infinity for ``max``, and with cgroup v1."""
    with contextlib.suppress(OSError, ValueError):
        path = own.read_text(encoding="utf-8").rpartition("0::/")[2].strip()
        return int((root / path / "memory.max").read_text(encoding="ascii"))
    return math.inf
