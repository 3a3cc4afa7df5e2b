"""A report as lines and tables for a person: what is wrong first, then who has what.

How they are printed is ``status_command``'s matter.
"""

from __future__ import annotations

import datetime
import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.names import natural_key
from aosp_plugin.daemon.report import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aosp_plugin.daemon.report import DeviceReport, LeakReport, PodContainer, Report, ResourceReport

ROWS = 20
"""Of a table, unless all are wanted."""


class Line(NamedTuple):
    """A line of text."""

    text: str
    bad: bool = False
    """Whether it calls for somebody."""
    head: bool = False
    """Whether something new begins with it."""


class Table(NamedTuple):
    """Rows below a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int
    """How many more rows there are."""


def summary(report: Report, rows: int | None = ROWS) -> list[Line | Table]:
    """Return what is worth telling of a report, with at most ``rows`` of each table; None: all."""
    how = "follows file events" if report.watching == "inotify" else "polls, as inotify can't be had"
    parts: list[Line | Table] = [
        Line(f"{report.node}: aosp-plugin {report.version} since {_time(report.started)}, {how}", head=True)
    ]
    if not report.allocations.known:
        parts.append(Line(f"Which pod has which device is not known: {report.allocations.problem}", bad=True))
    for resource in report.resources:
        parts += _of_resource(resource, rows)
    return parts


def _of_resource(resource: ResourceReport, limit: int | None) -> Iterator[Line | Table]:
    state = "registered with the kubelet" if resource.registered else "NOT registered with the kubelet"
    yield Line(f"{resource.name}: {state}", head=True)
    if resource.problem:
        yield Line(resource.problem, bad=True)
    yield Line(_counts(resource))
    for title, columns, every in (
        ("Leaked", ("NODE", "PID", "USER", "SINCE", "IN", "COMMAND"), [_leak_row(leak) for leak in resource.leaks]),
        ("Unhealthy", ("DEVICE", "REASON", "POD"), _ill_rows(resource.devices)),
        ("Pods", ("POD", "CONTAINER", "DEVICES"), _pod_rows(resource.devices)),
    ):
        if every:
            shown = every[:limit]
            yield Table(title, columns, shown, len(every) - len(shown))
    if resource.leaks_problem:
        yield Line(f"Leaks: {resource.leaks_problem}")


def _counts(resource: ResourceReport) -> str:
    counts = resource.counts
    parts = [f"{counts.allocated:,} allocated", f"{counts.free:,} free"]
    if counts.unknown:
        parts = [f"{counts.unknown:,} healthy, and not known whether in use"]
    parts += [f"{counts.unhealthy:,} unhealthy", f"{counts.leaked:,} leaked"]
    if resource.truncated:
        parts.append(f"{resource.truncated:,} of which the kubelet is not told")
    return f"{counts.total:,} devices: {', '.join(parts)}"


def _ill_rows(devices: Iterable[DeviceReport]) -> list[tuple[str, ...]]:
    """Return a row for each device that has a reason, leaked ones among them."""
    return [
        (device.id, device.detail or device.reason, ", ".join(map(_pod, device.pods)))
        for device in devices
        if device.reason
    ]


def _leak_row(leak: LeakReport) -> tuple[str, ...]:
    place = f"pod {leak.pod_uid}" if leak.pod_uid else f"container {leak.container[:12]}" if leak.container else "-"
    return (leak.node, str(leak.pid), str(leak.user), _time(leak.started), place, leak.command)


def _pod_rows(devices: Iterable[DeviceReport]) -> list[tuple[str, ...]]:
    """Return a row for each container that has devices, by namespace, pod and container."""
    given: dict[PodContainer, list[str]] = {}
    for device in devices:
        for pod in device.pods:
            mark = "" if device.state is State.ALLOCATED else f" ({device.state})"
            given.setdefault(pod, []).append(f"{device.id}{mark}")
    containers = sorted(given, key=lambda one: (one.namespace, natural_key(one.name), one.container))
    return [(_pod(one), one.container, ", ".join(ranges(given[one]))) for one in containers]


def _pod(pod: PodContainer) -> str:
    return f"{pod.namespace}/{pod.name}"


def ranges(names: Iterable[str]) -> list[str]:
    """Join names that differ by the number at their end, and have it in a row: a0, a1, a2, b as a0..2, b."""
    split = [
        (match[1], int(match[2])) if (match := re.fullmatch(r"(.*\D)(0|[1-9]\d*)", name)) else None for name in names
    ]
    joined = []
    numbered = enumerate(zip(names, split, strict=True))
    for _, run in itertools.groupby(
        numbered, lambda one: (one[1][1][0], one[1][1][1] - one[0]) if one[1][1] else one[0]
    ):
        members = [name for _, (name, _) in run]
        last = re.search(r"\d+$", members[-1])
        joined.append(f"{members[0]}..{last[0]}" if len(members) > 1 and last else members[0])
    return joined


def _time(seconds: float) -> str:
    """Return a moment, given in seconds since the epoch, in this machine's time."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
