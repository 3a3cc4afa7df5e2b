"""What ``/status`` and ``/metrics`` show of the running plugins: one source, so that both show the same numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.config.values import Api
from aosp_plugin.framework.observer import Observer, Observers
from aosp_plugin.framework.podresources_client import Allocations, PodResources
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.service.metrics import Metrics, StateGauge
from aosp_plugin.report.document import Change, ReloadReport
from aosp_plugin.report.history import History, ResourceHistory
from aosp_plugin.report.resource_report import LeakDetectionState, LeakScans, ResourceStatus, leak_detection_state

if TYPE_CHECKING:
    from aosp_plugin.report.leak_detector import LeakDetector


class NodeStatus(NamedTuple):
    """What the status report is made of, read in the event loop."""

    allocations: Allocations
    resources: tuple[ResourceStatus, ...]
    changes: tuple[Change, ...] = ()
    last_reload: ReloadReport | None = None


class Observation:
    """The metrics, the ages and the status of the resources of one configuration."""

    def __init__(
        self,
        backends: Mapping[str, BinderBackend],
        pod_resources: PodResources,
        detector: LeakDetector | None,
        *,
        polling: Callable[[], bool],
        scraped: bool = True,
        clock: Callable[[], float] = time.time,
        history: History | None = None,
    ) -> None:
        """``detector`` is None if leak detection is off. ``polling`` returns whether inotify is unavailable.

        ``scraped`` is False if the metrics have no address.

        ``clock`` returns seconds since the epoch. ``history`` is that of the process; None for one of its own.
        """
        self._pod_resources = pod_resources
        self._detector = detector
        self._clock = clock
        self._history = history or History(clock)
        self._histories = {name: ResourceHistory(name, self._history) for name in backends}
        self._backends = backends
        self.metrics = Metrics(self._gauges, reasons=tuple(Reason), polling=polling, exposed=scraped)

    def observer(self, resource: str) -> Observer:
        """Return the observer for the server of a resource."""
        is_driver = self._backends[resource].api is Api.DRA
        return Observers(self.metrics.observer(resource, is_driver=is_driver), self._histories[resource])

    async def status(self, servers: Sequence[ResourceServer]) -> NodeStatus:
        """Return the status of each resource, and what they have in common. For the event loop of the servers."""
        allocations = await self._pod_resources.current()
        resources = tuple(self._resource_status(server, allocations) for server in servers)
        return NodeStatus(allocations, resources, self._history.recent, self._history.last_reload)

    def _resource_status(self, server: ResourceServer, allocations: Allocations) -> ResourceStatus:
        name, confirmation = server.resource_name, server.confirmation
        history, scans = self._histories[name], self._leak_scans(name)
        if not allocations.problem:
            history.allocated(allocations.owners[name], confirmed=allocations.pods_known)
        if scans and scans.latest and scans.scanned is not None:
            history.leaked({holder.binder_device for holder in scans.latest.leaked}, scans.scanned)
        history.has_problem(problem=bool(server.unready))
        history.kubelet_lacks(confirmation.allocatable, confirmation.published, lacking=bool(confirmation.problem))
        return ResourceStatus(server, self._backends[name], history.since, scans)

    def _leak_scans(self, resource: str) -> LeakScans | None:
        detector = self._detector
        return LeakScans(detector.latest.get(resource), detector.scanned, detector.problem) if detector else None

    def _gauges(self) -> list[StateGauge]:
        """Return what is read at each scrape, without resources for which a state is unknown.

        Of leak detection, that is the worst state of a resource, and nothing else before the first scan.
        """
        allocated, backends, detector = self._pod_resources.allocated(), self._backends, self._detector
        gone = {name: len(self._histories[name].since.gone) for name in allocated}
        expected = {name: each.expected for name, each in backends.items() if each.expected is not None}
        by_spread_device: dict[tuple[str, ...], float] = {
            (name, path): len(ids) for name, each in backends.items() for path, ids in each.spread_devices().items()
        }
        leaks = detector.latest if detector else {}
        leaked = {name: found.leaked_devices for name, found in leaks.items()}
        unreadable = {(): max(found.unreadable for found in leaks.values())} if leaks else {}
        worst = max(
            (leak_detection_state(self._leak_scans(name)) for name in backends),
            key=get_args(LeakDetectionState).index,
        )
        states = {(state,): float(state == worst) for state in get_args(LeakDetectionState)}
        scanned = detector.scanned if detector else None
        # The clock may have been set back since.
        age = {} if scanned is None else {(): max(0.0, self._clock() - scanned)}
        return [
            StateGauge(
                "devices_allocated",
                "Devices allocated to pods, in any state, as `allocated` in `/status`; absent while unknown.",
                _by_label(allocated),
            ),
            StateGauge(
                "devices_gone", "Devices allocated to pods that no longer exist; absent while unknown.", _by_label(gone)
            ),
            StateGauge("devices_expected", "`phones.count` or `provision.count`; absent without.", _by_label(expected)),
            StateGauge(
                "spread_devices",
                "Devices, healthy or not, by the path of their spread device, which may be lost; absent without any.",
                by_spread_device,
                ("resource", "device"),
            ),
            StateGauge(
                "leaked_devices",
                "Binder devices that a process outside their pods holds open; absent before the first leak scan.",
                _by_label(leaked),
            ),
            StateGauge(
                "leak_unreadable_processes",
                "Processes that leak detection could not inspect; absent before the first leak scan.",
                unreadable,
                (),
            ),
            StateGauge(
                "leak_detection",
                "1 for the state of leak detection, else 0: `off`, `complete`, `pending` (no scan has ended yet), "
                "`incomplete` (processes are unreadable, or of an unknown pod), `failing` (the result is outdated).",
                states,
                ("state",),
            ),
            StateGauge("leak_scan_age_seconds", "Time since the last leak scan ended; absent before.", age, ()),
        ]


def _by_label(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): count for name, count in counts.items()}
