"""Renders a status report as lines of text: problems first, then the devices that pods have or that are unhealthy."""

import datetime
from collections.abc import Iterator, Sequence
from typing import Final

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
        if rows := [_row(device, now) for device in resource.devices if device.reason or device.pods]:
            lines += ["", *(f"  {row}" for row in aligned([("DEVICE", "STATE", "AGE", "POD", "REASON"), *rows]))]
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
    devices = f": {', '.join(problem.devices)}" if problem.devices else ""
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


def _row(device: document.DeviceReport, now: float) -> tuple[str, ...]:
    """Return a device with the pods that have it. Its age is that of its state."""
    since = "-" if device.since is None else age(now, device.since)
    pods = ", ".join(f"{pod.namespace}/{pod.name}" for pod in device.pods)
    return device.id, device.state, since, pods or "-", device.detail or device.reason


def age(now: float, since: float) -> str:
    """Return a duration as ``kubectl get`` shows ages: 12s, 5m, 3h, 2d."""
    seconds = max(0, int(now - since))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
