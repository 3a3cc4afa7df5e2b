"""The problems of a node, derived from its report: what an operator who was called has to see first."""

from collections.abc import Iterator, Sequence

from aosp_plugin.report.catalog import entry
from aosp_plugin.report.document import DeviceReport, Known, Problem, ResourceReport, Severity, State
from aosp_plugin.report.resource_report import GONE

NAMED_DEVICES = 10
"""Devices, and pods, that a problem names."""

_URGENCY = list(Severity)

_MILD_REASONS = frozenset({"surplus", "in-use-by-other-api"})
"""Reasons that follow from a change of the configuration, and end by themselves."""


def problems(resources: Sequence[ResourceReport], allocations: Known, watching: str) -> tuple[Problem, ...]:
    """Return the problems, most urgent first. ``watching`` is how file changes are detected."""
    from aosp_plugin.framework.podresources_client import DISABLED  # noqa: PLC0415 - gRPC, which the CLI does not need

    found = [problem for resource in resources for problem in _of_resource(resource)]
    if not allocations.known and allocations.problem != DISABLED.problem:
        found.append(_of_node("allocations-unknown", Severity.WARNING, allocations.problem))
    if watching == "polling":
        found.append(_of_node("polling", Severity.NOTICE))
    return tuple(sorted(found, key=lambda problem: _URGENCY.index(problem.severity)))


def _of_node(kind: str, severity: Severity, detail: str = "") -> Problem:
    said = entry(kind)
    return Problem(severity, kind, "", _sentence(said.title, detail), said.action, said.runbook)


def _of_resource(resource: ResourceReport) -> Iterator[Problem]:
    yield from _serving(resource)
    yield from _of_devices(resource)
    counts = resource.counts
    if resource.revision and not resource.devices:
        yield _problem(resource, "no-devices", Severity.WARNING)
    elif resource.expected is not None and counts.total < resource.expected:
        detail = f"{counts.total:,} of {resource.expected:,}"
        yield _problem(resource, "too-few-devices", Severity.WARNING, detail)
    if resource.leak_detection in {"failing", "incomplete"}:
        detail = resource.leaks_problem.removeprefix("leak detection is incomplete: ")
        yield _problem(resource, f"leak-detection-{resource.leak_detection}", Severity.WARNING, detail)


def _serving(resource: ResourceReport) -> Iterator[Problem]:
    """Yield what keeps pods from getting devices that are healthy."""
    since = resource.problem_since
    if not resource.registered:
        yield _problem(resource, "not-registered", Severity.ERROR, resource.problem, since or resource.since)
    elif resource.driver and resource.driver.slices_confirmed < resource.driver.slices:
        yield _problem(resource, "slices-missing", Severity.ERROR, resource.problem, since)
    elif resource.problem and (resource.kubelet_allocatable or 0) < (resource.kubelet_published or 0):
        # There is no problem before a second round confirms it.
        detail = f"{resource.kubelet_allocatable:,} of {resource.kubelet_published:,}"
        yield _problem(resource, "kubelet-disagrees", Severity.ERROR, detail, since)
    elif resource.problem and not resource.truncated:
        yield _problem(resource, "outdated", Severity.ERROR, resource.problem, since)
    if resource.notice:
        kind = "second-plugin" if resource.driver is None else "claims-not-repaired"
        yield _problem(resource, kind, Severity.WARNING, resource.notice)


def _problem(
    resource: ResourceReport, kind: str, severity: Severity, detail: str = "", since: float | None = None
) -> Problem:
    said = entry(kind)
    return Problem(severity, kind, resource.name, _sentence(said.title, detail), said.action, said.runbook, since)


def _sentence(title: str, detail: str) -> str:
    return f"{title}: {detail}" if detail else title


def _of_devices(resource: ResourceReport) -> Iterator[Problem]:
    """Yield a problem for each reason that unhealthy devices have, and one for leaked devices."""
    by_kind: dict[str, list[DeviceReport]] = {}
    for device in resource.devices:
        if device.state is State.LEAKED:
            by_kind.setdefault("leaked", []).append(device)
        if device.reason:
            by_kind.setdefault(device.reason, []).append(device)
    for kind, devices in by_kind.items():
        if kind == "leaked":
            severity = Severity.ERROR
        elif kind in _MILD_REASONS:
            severity = Severity.NOTICE
        else:
            severity = Severity.ERROR if kind != GONE and not resource.counts.healthy else Severity.WARNING
        yield _devices_problem(resource, kind, severity, devices)


def _devices_problem(
    resource: ResourceReport, kind: str, severity: Severity, devices: Sequence[DeviceReport]
) -> Problem:
    said, count = entry(kind), len(devices)
    pods = tuple(dict.fromkeys(f"{pod.namespace}/{pod.name}" for device in devices for pod in device.pods))
    return Problem(
        severity,
        kind,
        resource.name,
        f"{count:,} device{'s' * (count > 1)} {said.title}",
        said.action,
        said.runbook,
        min((device.since for device in devices if device.since is not None), default=None),
        count,
        tuple(device.id for device in devices[:NAMED_DEVICES]),
        pods[:NAMED_DEVICES],
        max(0, len(pods) - NAMED_DEVICES),
    )
