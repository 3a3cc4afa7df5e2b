"""One storm: all pods are created at once, and deleted when they run; what is recorded, and what follows from it."""

import itertools
import json
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.dra import CLAIMS
from tests.e2e.cluster.storm.scenes import Stage
from tests.e2e.cluster.watching import Watch
from tests.e2e.kubelet.waiting import until

_THREADS: Final = 16
"""Pods that are created at the same time."""
_LIMIT: Final = 600.0
"""Seconds until all pods must run, or be gone."""
_SETTLE: Final = 5.0
"""Seconds from the last event to the first creation."""
_NUMBERS: Final = itertools.count(1)
_STARTING: Final = ("GetPreferredAllocation", "Allocate", "PreStartContainer", "NodePrepareResources")
"""The requests that the start of a pod waits for."""
_BY_KUBELET: Final[Mapping[str, tuple[str, dict[str, str]]]] = {
    "Allocate": ("kubelet_device_plugin_alloc_duration_seconds", {}),
    "NodePrepareResources": (
        "dra_grpc_operations_duration_seconds",
        {"method_name": "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"},
    ),
}
"""The kubelet's histogram of each request that it measures; it includes the way to the plugin and back."""
_FORBIDDEN: Final = re.compile(
    r"FailedPrepareDynamicResources: .*\bfetch ResourceClaim (\S+): .*\"\1\" is forbidden: .*"
    r"no relationship found between node"
)
"""The event of a pod whose claim the kubelet was not allowed to read: the API server's node authorizer learns from a
watch which pod is bound to which node, and the kubelet from another (authorizer/node/graph_populator.go). The kubelet
gets all claims of a pod before it calls a driver, so that it called none (cm/dra/manager.go, prepareResources)."""


class Request(NamedTuple):
    """A request that the plugin has answered without an error."""

    rpc: str
    seconds: float
    """From the plugin's reading of the request to its answer."""


@dataclass(frozen=True)
class Storm:
    """The records of a storm. Times are in seconds since the epoch."""

    expected: Sequence[str]
    """The requests of which the plugin must have answered one for each pod."""
    created: Mapping[str, float]
    """The time of the request that created each pod."""
    running: Mapping[str, float]
    """The time at which each pod was reported as running."""
    answered: Sequence[Request]
    """The plugin's answers that a start waited for."""
    kubelet: Mapping[str, tuple[float, float]]
    """Number and seconds of the requests that the kubelet has measured."""
    warnings: Mapping[str, Sequence[str]]
    """The events of type Warning of each pod."""
    problems: Sequence[str]
    """The plugin's warnings, and restarts of pods."""

    @property
    def held_back(self) -> set[str]:
        """The pods that Kubernetes has held back without a call to the plugin."""
        return {pod for pod, texts in self.warnings.items() if any(map(_FORBIDDEN.match, texts))}


def record(cluster: Cluster, stage: Stage, count: int) -> Storm:
    """Run a storm of ``count`` pods on the cluster's first machine. Raises AssertionError if not all pods run."""
    prefix, path = f"storm-{next(_NUMBERS)}", phones.collection("Pod")
    names = [f"{prefix}-{number}" for number in range(count)]
    time.sleep(_SETTLE)
    before, started = _counters(cluster), time.time()
    with Watch(cluster.api, path) as watch:

        def running() -> dict[str, float]:
            found: dict[str, float] = {}
            for event in watch.events:
                if event.object["status"].get("phase") == "Running":
                    found.setdefault(event.name, event.at)
            assert len(found) == count, f"{len(found)} of {count} run; {_warnings(cluster)}"
            return found

        with ThreadPoolExecutor(_THREADS) as executor:
            created = dict(executor.map(lambda name: _create(cluster, stage, name), names))
        reached = until(running, "all pods run", seconds=_LIMIT)
    after = _counters(cluster)
    restarted = [pod["metadata"]["name"] for pod in phones.of(cluster, stage.app) if phones.container_of(pod)[1]]
    warnings = _warnings(cluster)
    remove(cluster)
    entries = [json.loads(line) for line in stage.log.splitlines() if line.startswith("{")]
    entries = [entry for entry in entries if datetime.fromisoformat(entry["time"]).timestamp() >= started]
    problems = [json.dumps(entry) for entry in entries if entry["level"] in {"warning", "error", "critical"}]
    return Storm(
        expected=stage.scene.rpcs,
        created=created,
        running=reached,
        answered=answers(entries),
        kubelet={
            rpc: (after[f"{rpc} count"] - before[f"{rpc} count"], after[f"{rpc} sum"] - before[f"{rpc} sum"])
            for rpc in _BY_KUBELET
        },
        warnings={pod: texts for pod, texts in warnings.items() if pod in created},
        problems=[f"{name} was restarted" for name in restarted] + problems,
    )


def _create(cluster: Cluster, stage: Stage, name: str) -> tuple[str, float]:
    at = time.time()
    phones.create(cluster, stage.pod(name))
    return name, at


def remove(cluster: Cluster) -> None:
    """Delete all pods, and wait until they and their claims are gone."""
    path = phones.collection("Pod")
    cluster.api.text("DELETE", path, seconds=60)
    gone = "pods and claims are gone"
    until(lambda: not cluster.api.list(path) and not cluster.api.list(CLAIMS), gone, seconds=_LIMIT)


def _warnings(cluster: Cluster) -> dict[str, list[str]]:
    """Return reason and message of the pods' events of type Warning."""
    found: dict[str, list[str]] = {}
    for event in cluster.api.list(f"{CORE}/namespaces/{phones.DEFAULT}/events", fieldSelector="type=Warning"):
        text = f"{event['reason']}: {event['message']}"
        found.setdefault(event["involvedObject"]["name"], []).append(text)
    return found


def _counters(cluster: Cluster) -> dict[str, float]:
    """Return numbers and seconds of the requests that the kubelet has measured."""
    text = cluster.api.text("GET", f"{CORE}/nodes/{cluster.machine.name}/proxy/metrics", seconds=60)
    return {
        f"{rpc} {part}": sum(plugin.samples(text, f"{name}_{part}", labels))
        for rpc, (name, labels) in _BY_KUBELET.items()
        for part in ("count", "sum")
    }


def answers(entries: Sequence[Mapping[str, Any]]) -> list[Request]:
    """Return the requests that a start waits for, from the entries of the plugin's log."""
    return [
        Request(entry["rpc"], entry.get("duration_ms", 0) / 1000)  # the kubelet measures those without a duration
        for entry in entries
        if entry.get("message") == "request answered" and entry["rpc"] in _STARTING
    ]


def failures(storm: Storm) -> list[str]:
    """Return what went wrong in a storm, and may be the plugin's fault; empty if nothing did."""
    texts = [text for found in storm.warnings.values() for text in found if not _FORBIDDEN.match(text)]
    found = [f"warning event: {text}" for text in texts] + [*storm.problems]
    for rpc in storm.expected:
        number = sum(request.rpc == rpc for request in storm.answered)
        if number != len(storm.created):
            found.append(f"the plugin answered {number} of {len(storm.created)} {rpc}")
        if rpc in storm.kubelet and storm.kubelet[rpc][0] != number:
            found.append(f"the kubelet counts {storm.kubelet[rpc][0]} {rpc}, the plugin {number}")
    return found


def rows(storm: Storm) -> dict[str, float]:
    """Return the rows of the table, each with its value."""
    starts = {pod: at - storm.created[pod] for pod, at in storm.running.items()}
    found = {
        "created to Running: median, s": statistics.median(starts.values()),
        "created to Running: last, s": max(starts.values()),
        "pods held back by Kubernetes": len(storm.held_back),
    }
    if storm.expected:
        own = [request.seconds for request in storm.answered if request.rpc not in storm.kubelet]
        waited = sum(own) + sum(seconds for _, seconds in storm.kubelet.values())
        # Without the pods that were held back: their wait would make the plugin's share look smaller.
        started = sum(seconds for pod, seconds in starts.items() if pod not in storm.held_back)
        found["the plugin's share of the start time, %"] = 100 * waited / started
    return found
