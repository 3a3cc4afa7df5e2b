"""Renders a status report as lines of text: problems first, then which pod has which device."""

from __future__ import annotations

import datetime
import math
import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from aosp_plugin.binder.discovery.names import natural_key
from aosp_plugin.report.document import State
from aosp_plugin.report.problems import lacks_devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aosp_plugin.report.document import DeviceReport, DriverReport, LeakReport, PodContainer, Report, ResourceReport

DEFAULT_ROWS = 20
"""Rows of a table that are shown by default."""


_SELINUX: Final = {
    True: "yes, as an unchanged Android requires",
    False: "no; an unchanged Android finds none of its services on this node, see docs/hosts.md",
    None: "unknown; an unchanged Android requires it, see docs/hosts.md",
}


class Line(NamedTuple):
    """A line of text and its style on a terminal."""

    text: str
    bold: bool = False
    color: str | None = None
    """A color name of ``click.style``."""


def summary(report: Report, max_rows: int | None = DEFAULT_ROWS, now: float | None = None) -> list[Line]:
    """Return a report as lines of text, with at most ``max_rows`` rows of each table, or all of them if it is None.

    ``now`` is the time of the report in seconds since the epoch; None is the present.
    """
    now = time.time() if now is None else now
    watching = "with inotify" if report.watching == "inotify" else "by polling (inotify is unavailable)"
    started = _time(report.started)
    lines = [Line(f"{report.node}: aosp-plugin {report.version}, up since {started}, detects changes {watching}")]
    lines.append(Line(f"  SELinux: {_SELINUX[report.selinux]}"))
    if not report.allocations.known:
        lines.append(Line(f"  Device allocations are unknown: {report.allocations.problem}", color="red"))
    for resource in report.resources:
        lines += _resource_lines(resource, max_rows, now, allocations_known=report.allocations.known)
    return lines


def problem_lines(report: Report, now: float | None = None) -> Iterator[str]:
    """Yield a line for each problem of a report: its severity, resource, age, what is wrong, and the first devices."""
    now = time.time() if now is None else now
    for problem in report.problems:
        since = "" if problem.since is None else f" (for {age(now, problem.since)})"
        devices = f": {', '.join(ranges(problem.devices))}" if problem.devices else ""
        more = f" and {problem.count - len(problem.devices):,} more" if problem.count > len(problem.devices) else ""
        yield f"{problem.severity}: {problem.resource or report.node}: {problem.summary}{since}{devices}{more}"


def _resource_lines(
    resource: ResourceReport, max_rows: int | None, now: float, *, allocations_known: bool
) -> Iterator[Line]:
    yield Line("")
    yield Line(f"{resource.name}: {_registration(resource, now)}", bold=True)
    if resource.problem:
        since = "" if resource.problem_since is None else f" (for {age(now, resource.problem_since)})"
        yield Line(f"  {resource.problem}{since}", color="red")
    if resource.notice:
        yield Line(f"  {resource.notice}", color="red")
    if resource.registered and lacks_devices(resource):
        yield Line(f"  The kubelet has fewer devices than the {resource.kubelet_published:,} healthy ones", color="red")
    yield Line(f"  {_counts(resource, allocations_known=allocations_known)}")
    if resource.expected is not None and resource.counts.total < resource.expected:
        yield Line(f"  {resource.expected:,} devices are provisioned, {resource.counts.total:,} exist", color="yellow")
    if resource.leaks_problem:
        yield Line(f"  {resource.leaks_problem}")
    leak_rows = [_leak_row(leak, now) for leak in resource.leaks]
    yield from _table("Leaked", ("DEVICE", "PID", "USER", "AGE", "LOCATION", "COMMAND"), leak_rows, max_rows, "red")
    unhealthy_rows = _unhealthy_rows(resource.devices, now)
    yield from _table("Unhealthy", ("DEVICE", "AGE", "REASON", "POD"), unhealthy_rows, max_rows, "yellow")
    spread_rows = _spread_rows(resource.devices, allocations_known=allocations_known)
    yield from _table("Spread devices", ("PATH", "DEVICES", "ALLOCATED", "UNHEALTHY"), spread_rows, max_rows)
    yield from _table("Pods", ("POD", "CONTAINER", "AGE", "DEVICES"), _pod_rows(resource.devices, now), max_rows)


def _registration(resource: ResourceReport, now: float) -> str:
    """Return whether the resource is registered, for how long, and what the kubelet has of it."""
    since = age(now, resource.since)
    if not resource.registered:
        return f"NOT registered with the kubelet for {since}"
    if resource.kubelet_allocatable is None:
        return f"registered with the kubelet for {since}{_driver(resource.driver)}"
    total = resource.counts.total - resource.truncated
    return (
        f"registered with the kubelet for {since}, which can allocate {resource.kubelet_allocatable:,} of {total:,} "
        "devices"
    )


def _driver(driver: DriverReport | None) -> str:
    """Return what a DRA driver has published and prepared; empty for a device plugin."""
    if driver is None:
        return ""
    return (
        f" as DRA driver {driver.name}, with {driver.slices_confirmed:,} of {driver.slices:,} ResourceSlices and "
        f"{driver.claims:,} prepared claim{'s' * (driver.claims != 1)}"
    )


def _table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    max_rows: int | None,
    color: str | None = None,
) -> Iterator[Line]:
    """Yield a table with aligned columns; nothing if it has no rows."""
    if not rows:
        return
    yield Line("")
    yield Line(f"  {title}", bold=True, color=color)
    shown = [columns, *rows[:max_rows]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield Line(f"    {'  '.join(cells)}".rstrip())
    if hidden := len(rows) - len(shown) + 1:
        yield Line(f"    ... and {hidden:,} more; use --all to show them")


def _counts(resource: ResourceReport, *, allocations_known: bool) -> str:
    counts = resource.counts
    parts = [f"{counts.healthy:,} healthy", f"{counts.unhealthy:,} unhealthy"]
    if allocations_known:
        gone = f" ({counts.gone:,} gone)" if counts.gone else ""
        parts += [f"{counts.allocated:,} allocated{gone}", f"{counts.free:,} free"]
    else:
        parts.append("allocation unknown")
    parts.append(f"{counts.leaked:,} leaked" if resource.leaks_known else "- leaked")
    if resource.truncated:
        parts.append(f"{resource.truncated:,} not advertised (the kubelet's 4 MiB message limit)")
    return f"{counts.total:,} device{'s' * (counts.total != 1)}: {', '.join(parts)}"


def _unhealthy_rows(devices: Iterable[DeviceReport], now: float) -> list[tuple[str, ...]]:
    """Return a row for each device with a reason, including leaked devices."""
    return [
        (
            device.id,
            "-" if device.since is None else age(now, device.since),
            device.detail or device.reason,
            ", ".join(map(_pod_name, device.pods)),
        )
        for device in devices
        if device.reason
    ]


def _leak_row(leak: LeakReport, now: float) -> tuple[str, ...]:
    location = f"pod {leak.pod_uid}" if leak.pod_uid else f"container {leak.container[:12]}" if leak.container else "-"
    return (leak.binder_device, str(leak.pid), str(leak.user), age(now, leak.since), location, leak.command)


def _pod_rows(devices: Iterable[DeviceReport], now: float) -> list[tuple[str, ...]]:
    """Return a row for each container that has devices, sorted by namespace, pod and container.

    Its age is the time since it got the first of its present devices.
    """
    devices_by_container: dict[PodContainer, list[str]] = {}
    since: dict[PodContainer, float] = {}
    for device in devices:
        for container in device.pods:
            state = "" if device.state is State.ALLOCATED else f" ({device.state})"
            devices_by_container.setdefault(container, []).append(f"{device.id}{state}")
            if device.allocated_since is not None:
                since[container] = min(since.get(container, math.inf), device.allocated_since)
    return [
        (
            _pod_name(container),
            container.container,
            age(now, since[container]) if container in since else "-",
            ", ".join(ranges(names)),
        )
        for container, names in sorted(
            devices_by_container.items(),
            key=lambda item: (item[0].namespace, natural_key(item[0].name), item[0].container),
        )
    ]


def _spread_rows(devices: Iterable[DeviceReport], *, allocations_known: bool) -> list[tuple[str, ...]]:
    """Return a row for each spread device that a device has, with the number of those devices."""
    by_path: dict[str, list[DeviceReport]] = {}
    for device in devices:
        if device.spread_device:
            by_path.setdefault(device.spread_device, []).append(device)
    return [
        (
            path,
            f"{len(by_path[path]):,}",
            f"{sum(bool(device.pods) for device in by_path[path]):,}" if allocations_known else "-",
            f"{sum(bool(device.reason) for device in by_path[path]):,}",
        )
        for path in sorted(by_path, key=natural_key)
    ]


def _pod_name(pod: PodContainer) -> str:
    return f"{pod.namespace}/{pod.name}"


def ranges(names: Iterable[str]) -> list[str]:
    """Join consecutive names that differ only in the number at their end: a0, a1, a2, b becomes a0..2, b."""
    joined: list[str] = []
    first = following = None
    for name in names:
        match = re.fullmatch(r"(.*\D)(0|[1-9]\d*)", name)
        if match and name == following:
            joined[-1] = f"{first}..{match[2]}"
        else:
            joined.append(name)
            first = name
        following = f"{match[1]}{int(match[2]) + 1}" if match else None
    return joined


def _time(seconds: float) -> str:
    """Return seconds since the epoch as local time."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(now: float, since: float) -> str:
    """Return a duration as ``kubectl get`` shows ages: 12s, 5m, 3h, 2d."""
    seconds = max(0, int(now - since))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
