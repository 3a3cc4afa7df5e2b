"""The status and the metrics of resources without a running plugin, for tests of reports."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

from aosp_plugin.backend import catalog
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.framework import conditions
from aosp_plugin.framework.backend import Device
from aosp_plugin.framework.conditions import Conditions, Kind
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.podresources_client import Allocations
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.report.node_reporter import problem_metric
from aosp_plugin.report.observation import Observation
from aosp_plugin.report.status import ResourceStatus, problems, resource_report
from tests.support import RESOURCE


def resource_status(
    snapshot: Snapshot,
    *,
    since: Mapping[str, float] = MappingProxyType({}),
    binder_devices: Mapping[str, Sequence[str]] | None = None,
    spread_devices: Mapping[str, Sequence[str]] | None = None,
    restricted: Mapping[str, Sequence[str]] | None = None,
) -> ResourceStatus:
    """Return the status of a resource since 1 s, with the names of the binder devices by device ID."""
    server: Any = SimpleNamespace(
        resource_name=RESOURCE,
        inventory=SimpleNamespace(snapshot=snapshot),
        confirmation=SimpleNamespace(allocatable=None, published=None),
        registered=True,
        registration=SimpleNamespace(registered_changed=1.0),
        driver=None,
    )
    found = _found(binder_devices or {}, spread_devices or {}, restricted or {})
    return ResourceStatus(server, _backend(), found, since)


def problems_of(server: ResourceServer) -> list[tuple[str, str]]:
    """Return severity and kind of each problem that the page shows of a server."""
    status = ResourceStatus(server, _backend(), FoundDevices(), {})
    report = resource_report(status, Allocations())
    return [(str(it.severity), it.kind) for it in problems([(report, server.conditions())], ())]


def _backend(expected: int | None = None) -> Any:
    return SimpleNamespace(advertised_ids=lambda device_id: [device_id], expected=expected, api=None)


def _found(
    binder_devices: Mapping[str, Sequence[str]],
    spread_devices: Mapping[str, Sequence[str]],
    restricted: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Any:
    members = {id_: [SimpleNamespace(name=name) for name in names] for id_, names in binder_devices.items()}
    return SimpleNamespace(members=members, by_spread_device=spread_devices, restricted=restricted)


def kinds() -> dict[str, Kind]:
    """Return the kinds of conditions of the framework and of the product, by the names of their constants."""
    return {name: kind for module in (conditions, catalog) for name, kind in vars(module).items() if type(kind) is Kind}


def state_metrics(resource: str) -> Metrics:
    """Return the metrics of a process in which each state of a resource has a value."""
    found = _found({}, {"/dev/dri/renderD128": ["a", "b"]}, restricted={"a": ["a"]})
    pod_resources: Any = SimpleNamespace(allocated=lambda: {resource: 3})
    metrics = Observation({resource: _backend(4)}, lambda _: found, pod_resources, Conditions(), polling=bool).metrics
    problem_metric(metrics).labels("startup_taint").set(0)
    return metrics


def complete_metrics() -> Metrics:
    """Return the metrics of a process with a device plugin and a DRA driver, with a value in every series."""
    metrics = state_metrics("aosp.io/a")
    for resource in ("aosp.io/a", "aosp.io/b"):
        metrics.add(resource, is_driver=resource == "aosp.io/b")
        metrics.count_devices(resource, Snapshot(1, [Device("b0")]))
        metrics.kubelet_allocatable.labels(resource).set(1)
    metrics.api_requests.labels("aosp.io/b", "GET", "resourceclaims", "200").inc()
    return metrics
