"""The problems of a node, derived from its conditions and devices, which an operator sees first."""

from collections.abc import Iterator, Mapping, Sequence

from aosp_plugin.backend.catalog import GONE, RESTRICTED
from aosp_plugin.binder.devices.health import REASONS, Reason
from aosp_plugin.framework.conditions import TRUNCATED, Condition, Kind, Severity
from aosp_plugin.report.document import DeviceReport, Problem, ResourceReport

NAMED_DEVICES = 10
"""Devices, and pods, that a problem names."""

_URGENCY = list(Severity)

_OF_DEVICES: Mapping[str, Kind] = {kind.name: kind for kind in (TRUNCATED, GONE, RESTRICTED)}
"""Kinds of which a problem names the devices."""


_ALERTS = "Aosp"
"""The prefix of the names of all alerts."""


def problems(
    resources: Sequence[tuple[ResourceReport, Sequence[Condition]]], node: Sequence[Condition]
) -> tuple[Problem, ...]:
    """Return the problems, most urgent first, of the resources with their conditions, and of the ``node``."""
    found = [problem for resource, conditions in resources for problem in _of_resource(resource, conditions)]
    found += [_of_condition("", condition) for condition in node]
    return tuple(sorted(found, key=lambda problem: _URGENCY.index(problem.severity)))


def fragment(kind: Kind) -> str:
    """Return the fragment of the heading in docs/runbook.md that a kind refers to."""
    return kind.heading or f"{_ALERTS}{kind.alert}".lower()


def _of_resource(resource: ResourceReport, conditions: Sequence[Condition]) -> Iterator[Problem]:
    """Yield a problem for each reason of devices, and for each condition that is not among them."""
    of_devices = [*_of_devices(resource)]
    shown = {problem.kind for problem in of_devices}
    yield from (_of_condition(resource.name, each) for each in conditions if each.kind.name not in shown)
    yield from of_devices


def summary(condition: Condition) -> str:
    """Return a condition in a sentence."""
    return f"{condition.kind.title}: {condition.detail}" if condition.detail else condition.kind.title


def _of_condition(resource: str, condition: Condition) -> Problem:
    kind, text = condition.kind, summary(condition)
    return Problem(kind.severity, kind.name, resource, text, kind.action, fragment(kind), condition.since)


def _of_devices(resource: ResourceReport) -> Iterator[Problem]:
    """Yield a problem for each reason that unhealthy devices have, and one for restricted devices."""
    by_kind: dict[str, list[DeviceReport]] = {}
    for device in resource.devices:
        if device.reason:
            by_kind.setdefault(device.reason, []).append(device)
        elif device.restricted:
            by_kind.setdefault(RESTRICTED.name, []).append(device)
    for name, devices in by_kind.items():
        kind = _OF_DEVICES[name] if name in _OF_DEVICES else _kind_of(Reason(name))
        if kind.severity is not Severity.NOTICE and kind is not GONE:
            urgent = not resource.counts.healthy
            kind = kind._replace(severity=Severity.ERROR if urgent else Severity.WARNING)
        yield _devices_problem(resource.name, kind, devices)


def _kind_of(reason: Reason) -> Kind:
    row = REASONS[reason]
    severity = Severity.NOTICE if row.deliberate else Severity.WARNING
    return Kind(reason, row.title, row.action, heading=reason, severity=severity)


def _devices_problem(resource: str, kind: Kind, devices: Sequence[DeviceReport]) -> Problem:
    count = len(devices)
    pods = tuple(dict.fromkeys(f"{pod.namespace}/{pod.name}" for device in devices for pod in device.pods))
    return Problem(
        kind.severity,
        kind.name,
        resource,
        f"{count:,} device{'s' * (count > 1)} {kind.title}",
        kind.action,
        fragment(kind),
        min((device.since for device in devices if device.since is not None), default=None),
        count,
        tuple(device.id for device in devices[:NAMED_DEVICES]),
        pods[:NAMED_DEVICES],
        max(0, len(pods) - NAMED_DEVICES),
    )
