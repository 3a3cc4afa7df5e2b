"""Renders a status report as lines of text: problems first, then which pod has which device."""

import datetime
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aosp_plugin.binder.devices.sets import natural_key
from aosp_plugin.report import document

_SELINUX: Final = {
    True: "yes, as an unchanged Android requires",
    False: "no; an unchanged Android finds no services here, redroid does not need it: see docs/hosts.md",
    None: "unknown; an unchanged Android requires it, see docs/hosts.md",
}


def summary(report: document.Report, now: float) -> list[str]:
    """Return a report as lines of text. ``now`` is its time in seconds since the epoch."""
    started = datetime.datetime.fromtimestamp(report.started).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    lines = [f"{report.node}: aosp-plugin {report.version}, up since {started}"]
    lines.append(f"  SELinux: {_SELINUX[report.selinux]}")
    lines += _problems_of("", report, now)
    for resource in report.resources:
        lines += ["", f"{resource.name}: {_registration(resource, now)}"]
        lines.append(f"  {_counts(resource, allocations_known=report.allocations.known)}")
        lines += _problems_of(resource.name, report, now)
        unhealthy = _unhealthy_rows(resource.devices, now)
        lines += _table("Unhealthy", ("DEVICE", "AGE", "REASON", "POD"), unhealthy)
        pods = _pod_rows(resource.devices, now)
        lines += _table("Pods", ("POD", "CONTAINER", "AGE", "DEVICES"), pods)
    return lines


def problem_lines(report: document.Report, now: float) -> Iterator[str]:
    """Yield a line for each problem of a report: its severity, resource, age, what is wrong, and the first devices."""
    for problem in report.problems:
        yield f"{problem.severity}: {problem.resource or report.node}: {_sentence(problem, now)}"


def _problems_of(resource: str, report: document.Report, now: float) -> Iterator[str]:
    """Yield a line for each problem of a resource; of the node if it is empty."""
    for problem in report.problems:
        if problem.resource == resource:
            yield f"  {problem.severity}: {_sentence(problem, now)}"


def _sentence(problem: document.Problem, now: float) -> str:
    since = "" if problem.since is None else f" (for {age(now, problem.since)})"
    devices = f": {', '.join(ranges(problem.devices))}" if problem.devices else ""
    more = f" and {problem.count - len(problem.devices):,} more" if problem.count > len(problem.devices) else ""
    return f"{problem.summary}{since}{devices}{more}"


def _registration(resource: document.ResourceReport, now: float) -> str:
    """Return whether the resource is registered, for how long, and how many devices the kubelet or API server has."""
    since, driver = age(now, resource.since), resource.driver
    if not resource.registered:
        return f"NOT registered with the kubelet for {since}"
    text = f"registered with the kubelet for {since}"
    if driver is not None:
        return (
            f"{text} as DRA driver {driver.name}, with {driver.slices_confirmed:,} of {driver.slices:,} ResourceSlices "
            f"and {driver.claims:,} prepared claim{'s' * (driver.claims != 1)}"
        )
    if resource.kubelet_allocatable is None:
        return text
    total = resource.counts.total - resource.truncated
    return f"{text}, which can allocate {resource.kubelet_allocatable:,} of {total:,} devices"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table with aligned columns; nothing if it has no rows."""
    if rows:
        yield from ("", f"  {title}", *(f"    {text}" for text in aligned([columns, *rows])))


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _counts(resource: document.ResourceReport, *, allocations_known: bool) -> str:
    counts = resource.counts
    parts = [f"{counts.healthy:,} healthy", f"{counts.unhealthy:,} unhealthy"]
    if allocations_known:
        gone = f" ({counts.gone:,} gone)" if counts.gone else ""
        parts += [f"{counts.allocated:,} allocated{gone}", f"{counts.free:,} free"]
    else:
        parts.append("allocation unknown")
    return f"{counts.total:,} device{'s' * (counts.total != 1)}: {', '.join(parts)}"


def _unhealthy_rows(devices: Iterable[document.DeviceReport], now: float) -> list[tuple[str, ...]]:
    """Return a row for each device with a reason."""
    return [
        (
            device.id,
            _age_or_dash(now, device.since),
            device.detail or device.reason,
            ", ".join(map(_pod_name, device.pods)),
        )
        for device in devices
        if device.reason
    ]


def _pod_rows(devices: Iterable[document.DeviceReport], now: float) -> list[tuple[str, ...]]:
    """Return a row for each container that has devices, sorted by namespace, pod and container.

    Its age is the time since it got the first of its present devices.
    """
    by_container: dict[document.PodContainer, list[document.DeviceReport]] = {}
    for device in devices:
        for container in device.pods:
            by_container.setdefault(container, []).append(device)
    rows: list[tuple[str, ...]] = []
    for container in sorted(by_container, key=lambda each: (each.namespace, natural_key(each.name), each.container)):
        own = by_container[container]
        since = min((device.allocated_since for device in own if device.allocated_since is not None), default=None)
        states = ["" if device.state is document.State.ALLOCATED else f" ({device.state})" for device in own]
        names = ranges(f"{device.id}{state}" for device, state in zip(own, states, strict=True))
        rows.append((_pod_name(container), container.container, _age_or_dash(now, since), ", ".join(names)))
    return rows


def _pod_name(pod: document.PodContainer) -> str:
    return f"{pod.namespace}/{pod.name}"


def ranges(names: Iterable[str]) -> list[str]:
    """Join consecutive names that differ only in the number at their end: a0, a1, a2, b becomes a0..2, b."""
    joined: list[str] = []
    first = following = None
    for name in names:
        match = re.fullmatch(r"(.*\D)(0|[1-9]\d{0,999})", name)
        if match and name == following:
            joined[-1] = f"{first}..{match[2]}"
        else:
            joined.append(name)
            first = name
        following = f"{match[1]}{int(match[2]) + 1}" if match else None
    return joined


def _age_or_dash(now: float, since: float | None) -> str:
    return "-" if since is None else age(now, since)


def age(now: float, since: float) -> str:
    """Return a duration as ``kubectl get`` shows ages: 12s, 5m, 3h, 2d."""
    seconds = max(0, int(now - since))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
