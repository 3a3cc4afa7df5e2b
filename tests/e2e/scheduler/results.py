"""The result of one measurement, what follows from it, and the tables in Markdown. All functions are pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import msgspec

from tests.e2e.scheduler.usage import WRITES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PROGRAMS: Final = ("kube-apiserver", "kube-scheduler", "etcd", "kube-controller-manager")
_MIDDLE: Final = 0.8
_FEW: Final = 0.05
"""Requests per pod below which a kind of request is no part of the table."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Times are in seconds, memory is in MiB."""

    kubernetes: str
    """The version."""
    nodes: int
    phones: int
    """Phones of each node."""
    used: int
    """Phones of each node that belonged to other pods."""
    pods: int
    """Pods that were created at once."""
    variant: str
    limits: str
    """``default`` or ``raised``: how many requests per second the clients of the control plane may send."""
    percentage: int
    """The scheduler's ``percentageOfNodesToScore``; 0 is the default, which depends on the number of nodes."""
    load: float
    """The machine's load average before the pods were created."""
    single: list[float]
    """Latencies of pods that were created one at a time."""
    created: float
    """Until all pods were created."""
    bound: list[float]
    """When each pod was bound, in ascending order."""
    latencies: list[float]
    """From the request that created a pod until it was bound."""
    cpu: dict[str, float]
    """Processor time by program, from the first pod until the control plane was quiet."""
    memory: dict[str, float]
    """RSS by program at the end."""
    peak: dict[str, float]
    """The most RSS by program."""
    requests: dict[str, float]
    """By verb and resource."""
    etcd: dict[str, float]
    """``puts``, and ``bytes`` received."""
    phases: dict[str, float]
    """Wall time of the scheduler by extension point."""

    @property
    def rate(self) -> float:
        """Pods per second: the middle 80 % of those that were bound, without the beginning and the end."""
        return middle_rate(self.bound)


def middle_rate(times: Sequence[float]) -> float:
    """Return events per second within the middle 80 % of ascending times; 0 with fewer than ten."""
    edge = round(len(times) * (1 - _MIDDLE) / 2)
    if not edge:
        return 0.0
    middle = times[edge:-edge]
    seconds = middle[-1] - middle[0]
    return (len(middle) - 1) / seconds if seconds else 0.0


def writes(run: Run) -> float:
    """Return the writing requests that the API server has answered, per pod."""
    return sum(count for kind, count in run.requests.items() if kind.split()[0] in WRITES) / run.pods


def speed_table(runs: Iterable[Run]) -> str:
    """Return a table of rates and latencies, with a row for each run."""
    head = ["fleet", "pods request", "limits", "pods per second", "one at a time: median; worst, ms"]
    head += ["at once: median; worst, s", "created; all bound after, s", "load average"]
    return _markdown(head, [[*_settings(run), *_speed(run)] for run in runs])


def _speed(run: Run) -> list[str]:
    bound = f"{run.bound[-1]:.0f}" if len(run.bound) == run.pods else f"only {len(run.bound):,} of {run.pods:,}"
    return [
        f"{run.rate:.0f}",
        _median_worst(run.single, 1000, ".0f"),
        _median_worst(run.latencies, 1, ".1f"),
        f"{run.created:.0f}; {bound}",
        f"{run.load:.0f}",
    ]


def cost_table(runs: Iterable[Run]) -> str:
    """Return a table of processor time, memory and writes, with a row for each run."""
    head = [
        "fleet",
        "pods request",
        "limits",
        "CPU per pod, ms",
        "most RSS, MiB",
        "writes per pod",
        "kB to etcd per pod",
    ]
    return _markdown(head, [[*_settings(run), *_cost(run)] for run in runs])


def _cost(run: Run) -> list[str]:
    cpu = [1000 * run.cpu.get(name, 0.0) / run.pods for name in PROGRAMS]
    return [
        f"{sum(cpu):.0f}: " + ", ".join(f"{value:.1f}" for value in cpu),
        ", ".join(f"{run.peak.get(name, 0.0):,.0f}" for name in PROGRAMS),
        f"{writes(run):.1f}",
        f"{run.etcd.get('bytes', 0) / run.pods / 1000:.1f}",
    ]


def _settings(run: Run) -> list[str]:
    return [
        f"{run.nodes:,} x {run.phones}{f', {run.used} used' if run.used else ''}",
        run.variant,
        _limits(run),
    ]


def request_table(runs: Sequence[Run]) -> str:
    """Return a table of the writing requests per pod by verb and resource, with a column for each run."""
    kinds = {
        kind
        for run in runs
        for kind, count in run.requests.items()
        if kind.split()[0] in WRITES and count >= _FEW * run.pods
    }
    head = ["requests per pod", *(_title(run) for run in runs)]
    rows = [[kind, *(_per_pod(run.requests, kind, run.pods) for run in runs)] for kind in sorted(kinds)]
    return _markdown(head, rows)


def phase_table(runs: Sequence[Run]) -> str:
    """Return a table of the scheduler's wall time per pod by extension point, with a column for each run."""
    points = sorted({point for run in runs for point, seconds in run.phases.items() if seconds >= run.pods / 10_000})
    head = ["scheduler, ms per pod", *(_title(run) for run in runs)]
    rows = [[point, *(_per_pod(run.phases, point, run.pods / 1000) for run in runs)] for point in points]
    return _markdown(head, rows)


def _title(run: Run) -> str:
    return f"{run.variant}, {run.nodes:,} nodes{f', {run.used} used' if run.used else ''}, {_limits(run)}"


def _limits(run: Run) -> str:
    return f"{run.limits}{f', {run.percentage} % of nodes' if run.percentage else ''}"


def _per_pod(counts: Mapping[str, float], key: str, pods: float) -> str:
    return f"{counts.get(key, 0) / pods:.1f}"


def _median_worst(values: Sequence[float], factor: float, form: str) -> str:
    if not values:
        return "-"
    return f"{factor * statistics.median(values):{form}}; {factor * max(values):{form}}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
