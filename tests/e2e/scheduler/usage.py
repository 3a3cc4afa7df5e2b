"""What the control plane's processes use: processor time, memory, and requests by their own counters."""

from __future__ import annotations

import os
import re
import ssl
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tests.e2e.cluster.control_plane import ETCD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.e2e.cluster.control_plane import ControlPlane

_SAMPLE: Final = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SCHEDULER: Final = "https://127.0.0.1:10259/metrics"
WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
READS: Final = frozenset({"GET", "LIST", "WATCH"})


Counts: TypeAlias = Mapping[str, float]


class Counters(NamedTuple):
    """Counters at one time; :meth:`since` returns how much they have grown."""

    cpu: Counts
    """Processor time by program, in seconds."""
    requests: Counts
    """Requests that the API server has answered, by verb and resource."""
    etcd: Counts
    """``puts`` of etcd, and ``bytes`` that it has received from the API server."""
    phases: Counts
    """Wall time of the scheduler by extension point, in seconds."""

    def since(self, before: Counters) -> Counters:
        """Return the growth since another time; what has not grown is absent."""
        return Counters(*(_growth(now, then) for now, then in zip(self, before, strict=True)))


def _growth(now: Counts, before: Counts) -> Counts:
    return {key: value - before.get(key, 0) for key, value in now.items() if value > before.get(key, 0)}


def samples(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield labels and value of the samples with a name that have labels, in Prometheus' text format."""
    for found, labels, value in _SAMPLE.findall(text):
        if found == name:
            yield dict(_LABEL.findall(labels)), float(value)


def requests(text: str) -> Counts:
    """Return the number of requests by verb and resource, from the API server's metrics."""
    counts: defaultdict[str, float] = defaultdict(float)
    for labels, value in samples(text, "apiserver_request_total"):
        if resource := labels["resource"]:
            subresource = f"/{labels['subresource']}" if labels["subresource"] else ""
            counts[f"{labels['verb']} {resource}{subresource}"] += value
    return counts


def phases(text: str) -> Counts:
    """Return the scheduler's seconds by extension point."""
    counts: defaultdict[str, float] = defaultdict(float)
    for labels, value in samples(text, "scheduler_framework_extension_point_duration_seconds_sum"):
        counts[labels["extension_point"]] += value
    return counts


def etcd(text: str) -> Counts:
    """Return etcd's counters."""
    found = dict(re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE))
    names = {"puts": "etcd_mvcc_put_total", "bytes": "etcd_network_client_grpc_received_bytes_total"}
    return {short: float(found[name]) for short, name in names.items()}


def read(control_plane: ControlPlane) -> Counters:
    """Read all counters."""
    insecure = ssl._create_unverified_context()  # noqa: S323 - the scheduler makes its own certificate
    with urllib.request.urlopen(_SCHEDULER, timeout=60, context=insecure) as answer:
        scheduler = answer.read().decode()
    return Counters(
        cpu={daemon.name: cpu_seconds(daemon.pid) for daemon in control_plane.daemons},
        requests=requests(control_plane.api.text("GET", "/metrics", seconds=60)),
        etcd=etcd_counters(),
        phases=phases(scheduler),
    )


def etcd_counters() -> Counts:
    """Read etcd's counters."""
    with urllib.request.urlopen(f"{ETCD}/metrics", timeout=60) as answer:  # noqa: S310 - of this sandbox
        return etcd(answer.read().decode())


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pids: Iterable[tuple[str, int]]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the memory of processes by their names: RSS now, and the most so far, in MiB."""
    now, peak = {}, {}
    for name, pid in pids:
        found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
        now[name], peak[name] = int(found["VmRSS"]) / 1024, int(found["VmHWM"]) / 1024
    return now, peak
