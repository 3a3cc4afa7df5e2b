"""Prometheus metrics of DRA drivers: ``DraResourceMetrics`` is the ``DraObserver`` of one driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from aosp_plugin.framework.dra.observer import DraObserver, Repaired

if TYPE_CHECKING:
    from aosp_plugin.framework.observer import Observer
    from aosp_plugin.framework.service.counts import Histogram, Registry, Series, Value

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)
_RESULTS = ("ok", "failed")


class DraMetrics:
    """The metrics of all DRA drivers of the process."""

    def __init__(self, registry: Registry) -> None:
        def counter(name: str, help_text: str, *labels: str) -> Series[Value]:
            return registry.counter(f"aosp_plugin_{name}", help_text, "resource", *labels)

        def gauge(name: str, help_text: str) -> Series[Value]:
            return registry.gauge(f"aosp_plugin_{name}", help_text, "resource")

        def histogram(name: str, help_text: str) -> Series[Histogram]:
            return registry.histogram(f"aosp_plugin_{name}", help_text, _BUCKETS, "resource")

        self.prepares = counter("claim_prepares_total", "Preparations of claims by result.", "result")
        self.prepare_duration = histogram("claim_prepare_duration_seconds", "Duration of preparations of claims.")
        self.unprepares = counter("claim_unprepares_total", "Unpreparations of claims by result.", "result")
        self.unprepare_duration = histogram("claim_unprepare_duration_seconds", "Duration of unpreparations.")
        self.device_wait = histogram(
            "claim_device_wait_seconds", "Time that preparations waited for a device of another claim."
        )
        self.claims = gauge("claims_prepared", "Claims that are prepared.")
        self.slices_wanted = gauge("slices_wanted", "ResourceSlices that should exist.")
        self.slices_confirmed = gauge("slices_confirmed", "ResourceSlices that exist as they should.")
        self.slice_repairs = counter(
            "slice_repairs_total", "ResourceSlices that were written again after a change by another client.", "reason"
        )
        self.repairs = counter(
            "claim_repairs_total", "Repairs of claims, CDI specs, mounts and the checkpoint.", "kind", "result"
        )
        self.api_requests = counter(
            "api_requests_total", "Requests to the API server by HTTP status.", "verb", "object", "code"
        )


class DraResourceMetrics(DraObserver):
    """The observer of one driver. Registrations are counted with those of device plugins, by ``registrations``."""

    def __init__(self, resource: str, metrics: DraMetrics, registrations: Observer) -> None:
        self._resource = resource
        self._registrations = registrations
        self._api_requests = metrics.api_requests
        # Every series exists from the start, because rate() ignores a series' first value.
        self._prepares = {result: metrics.prepares.labels(resource, result) for result in _RESULTS}
        self._unprepares = {result: metrics.unprepares.labels(resource, result) for result in _RESULTS}
        self._slice_repairs = {
            reason: metrics.slice_repairs.labels(resource, reason) for reason in ("deleted", "changed", "missing")
        }
        self._repairs = {
            (kind, result): metrics.repairs.labels(resource, kind, result)
            for kind in get_args(Repaired)
            for result in _RESULTS
        }
        self._prepare_duration = metrics.prepare_duration.labels(resource)
        self._unprepare_duration = metrics.unprepare_duration.labels(resource)
        self._device_wait = metrics.device_wait.labels(resource)
        self._claims = metrics.claims.labels(resource)
        self._slices_wanted = metrics.slices_wanted.labels(resource)
        self._slices_confirmed = metrics.slices_confirmed.labels(resource)

    def registration(self, result: Literal["ok", "failed"]) -> None:
        """Count the kubelet's answer to a registration."""
        self._registrations.registration(result)

    def unregistered(self) -> None:
        """Record the end of a registration."""
        self._registrations.unregistered()

    def prepared(self, result: Literal["ok", "failed"], seconds: float) -> None:
        """Count a preparation, and its duration."""
        self._prepares[result].inc()
        self._prepare_duration.observe(seconds)

    def unprepared(self, result: Literal["ok", "failed"], seconds: float) -> None:
        """Count an unpreparation, and its duration."""
        self._unprepares[result].inc()
        self._unprepare_duration.observe(seconds)

    def claims_changed(self, prepared: int) -> None:
        """Record the number of prepared claims."""
        self._claims.set(prepared)

    def waited_for_device(self, seconds: float) -> None:
        """Record how long a preparation waited for a device of another claim."""
        self._device_wait.observe(seconds)

    def api_request(self, verb: str, resource: str, code: str) -> None:
        """Count a request to the API server."""
        self._api_requests.labels(self._resource, verb, resource, code).inc()

    def slices(self, wanted: int, confirmed: int) -> None:
        """Record the numbers of slices."""
        self._slices_wanted.set(wanted)
        self._slices_confirmed.set(confirmed)

    def slices_repaired(self, reason: Literal["deleted", "changed", "missing"]) -> None:
        """Count a slice that was written again."""
        self._slice_repairs[reason].inc()

    def reconciled(self, kind: Repaired, result: Literal["ok", "failed"]) -> None:
        """Count a repair."""
        self._repairs[kind, result].inc()
