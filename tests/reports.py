"""The status and the metrics of resources without a running plugin, for tests of reports."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.service.metrics import Metrics
from aosp_plugin.report.history import Since
from aosp_plugin.report.leaks import Leaks
from aosp_plugin.report.observation import Observation
from aosp_plugin.report.resource_report import LeakScans, ResourceStatus
from tests.support import RESOURCE


def resource_status(
    snapshot: Snapshot,
    *,
    since: Since | None = None,
    leaks: LeakScans | None = None,
    binder_devices: Mapping[str, Sequence[str]] | None = None,
    spread_devices: Mapping[str, Sequence[str]] | None = None,
    allocatable: int | None = None,
    published: int | None = None,
    expected: int | None = None,
) -> ResourceStatus:
    """Return the status of a resource that is ready, with the names of the binder devices by device ID."""
    unknown = "" if published is not None else "the kubelet has not been asked yet"
    server: Any = SimpleNamespace(
        resource_name=RESOURCE,
        inventory=SimpleNamespace(snapshot=snapshot),
        confirmation=SimpleNamespace(allocatable=allocatable, published=published, unknown=unknown),
        unready="",
        notice="",
        driver=None,
    )
    found = {id_: [SimpleNamespace(name=name) for name in names] for id_, names in (binder_devices or {}).items()}
    backend: Any = SimpleNamespace(
        binder_devices=lambda: found,
        advertised_ids=lambda device_id: [device_id],
        spread_devices=lambda: spread_devices or {},
        expected=expected,
    )
    return ResourceStatus(server, backend, since or Since(), leaks)


def state_metrics(resource: str, leaks: Mapping[str, Leaks]) -> Metrics:
    """Return the metrics of a process in which each state of a resource has a value; none of leaks before a scan."""
    backend: Any = SimpleNamespace(expected=4, spread_devices=lambda: {"/dev/dri/renderD128": ["a", "b"]}, api=None)
    pod_resources: Any = SimpleNamespace(allocated=lambda: {resource: 3})
    detector: Any = SimpleNamespace(latest=leaks, scanned=5.0, problem="")
    return Observation({resource: backend}, pod_resources, detector, polling=bool, clock=lambda: 10.0).metrics


def complete_metrics() -> Metrics:
    """Return the metrics of a process with a device plugin and a DRA driver, with a value in every series."""
    leaks: Any = SimpleNamespace(leaked_devices=1, unreadable=0, incomplete=False, undecided=())
    metrics = state_metrics("aosp.io/a", {"aosp.io/a": leaks, "aosp.io/b": leaks})
    for resource in ("aosp.io/a", "aosp.io/b"):
        observer = metrics.observer(resource)
        observer.published(Snapshot(1, [Device("b0")]), None)
        observer.confirmed(1)
    metrics.observer("aosp.io/b", is_driver=True).api_request("GET", "resourceclaims", "200")
    metrics.node_problem("events", 0)
    metrics.node_request("create", "events", "201")
    return metrics
