"""What is computed from the records of a storm."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster.storm import events, histograms, recorder
from tests.e2e.cluster.storm.processors import BENCH, OTHERS, PLUGIN
from tests.e2e.cluster.storm.requests import Request, busy_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.e2e.cluster.storm.events import Warned
    from tests.e2e.cluster.storm.histograms import Series, Total

_STAGES: Final = {
    recorder.SCHEDULED: "created to scheduled",
    recorder.SANDBOX: "created to sandbox and network",
    recorder.RUNNING: "created to Running",
}
_BY_KUBELET: Final = {
    "Allocate": ("kubelet_device_plugin_alloc_duration_seconds", {}),
    "NodePrepareResources": (
        "dra_grpc_operations_duration_seconds",
        {"method_name": "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"},
    ),
}
"""The kubelet's histogram of each request that it measures; no scene has two resources."""
_BY_PLUGIN: Final = {
    "Allocate": "aosp_plugin_allocation_duration_seconds",
    "NodePrepareResources": "aosp_plugin_claim_prepare_duration_seconds",
}
_RUNTIME: Final = "kubelet_runtime_operations_duration_seconds"
_OPERATIONS: Final = ("run_podsandbox", "create_container", "start_container")


@dataclass(frozen=True)
class Storm:
    """The records of a storm. Times are in seconds since the epoch."""

    count: int
    """The number of pods."""
    expected: Sequence[str]
    """The requests of which the plugin must have answered one for each pod."""
    created: Mapping[str, float]
    """The time of the request that created each pod."""
    reached: Mapping[str, Mapping[str, float]]
    """The time of each stage by pod."""
    deleted: float
    """The time of the request that deleted all pods."""
    gone: Mapping[str, float]
    """The time at which each pod's object was gone."""
    starting: Sequence[Request]
    """The plugin's answers that a start waited for."""
    ending: Sequence[Request]
    """The plugin's answers that an end waited for."""
    processors: Mapping[str, float]
    """The seconds that each program used from the first creation until all pods were ready."""
    kubelet: Mapping[Series, Total]
    """What the kubelet's histograms observed in that time."""
    plugin: Mapping[Series, Total]
    """What the plugin's histograms observed in that time."""
    warnings: Sequence[Warned]
    """The pods' events of type Warning."""
    called: Mapping[str, float]
    """The time of the first request to the plugin for each claim, by the claim's name."""
    problems: Sequence[str]
    """Other failures."""

    @property
    def start_seconds(self) -> list[float]:
        """The seconds from the creation of each pod until it was Running.

        Without the pods that were held back: their wait would make the plugin's share look smaller.
        """
        running = self.reached[recorder.RUNNING]
        return [at - self.created[pod] for pod, at in running.items() if pod not in self.held_back]

    @property
    def held_back(self) -> Mapping[str, Warned]:
        """The pods that Kubernetes has held back without a call to the plugin, each with the event that shows it."""
        return {event.pod: event for event in self.warnings if events.is_of_kubernetes(event, self.called)}

    @property
    def wall(self) -> float:
        """The seconds from the first creation until the last pod was Running."""
        return max(self.reached[recorder.RUNNING].values()) - min(self.created.values())

    def seconds(self, stage: str) -> list[float]:
        """Return the seconds from the creation of each pod to a stage, in ascending order."""
        return sorted(at - self.created[pod] for pod, at in self.reached[stage].items())

    def waited(self, rpc: str) -> Total:
        """Return the number and the seconds of a request: the kubelet's if it measures them, or the plugin's.

        The kubelet's seconds include the way to the plugin and back. It does not measure all requests.
        """
        own = [request.seconds for request in self.starting if request.rpc == rpc]
        if rpc not in _BY_KUBELET:
            return histograms.Total(len(own), sum(own))
        name, labels = _BY_KUBELET[rpc]
        return histograms.total(self.kubelet, name, **labels)


def failures(storm: Storm) -> list[str]:
    """Return what went wrong in a storm, and may be the plugin's fault; empty if nothing did."""
    others = [event.text for event in storm.warnings if not events.is_of_kubernetes(event, storm.called)]
    found = [f"warning event: {text}" for text in others] + [*storm.problems]
    for rpc in storm.expected:
        answers = sum(request.rpc == rpc for request in storm.starting)
        if answers != storm.count:
            found.append(f"the plugin answered {answers} of {storm.count} {rpc}")
        if rpc in _BY_PLUGIN and (counted := histograms.total(storm.plugin, _BY_PLUGIN[rpc]).number) != answers:
            found.append(f"the plugin's metrics count {counted} {rpc}, its log {answers}")
        if (counted := storm.waited(rpc).number) != answers:
            found.append(f"the kubelet counts {counted} {rpc}, the plugin {answers}")
    return found


def rows(storm: Storm) -> Iterator[tuple[str, float]]:
    """Yield the rows of the table, each with its value."""
    for stage, title in _STAGES.items():
        seconds = storm.seconds(stage)
        yield f"{title}: median, s", statistics.median(seconds)
        yield f"{title}: last, s", seconds[-1]
    yield "pods a second", storm.count / storm.wall
    gone = sorted(at - storm.deleted for at in storm.gone.values())
    yield "deleted to gone: median, s", statistics.median(gone)
    yield "deleted to gone: last, s", gone[-1]
    yield "failures", len(failures(storm))
    yield "pods held back by Kubernetes, without a call to the plugin", len(storm.held_back)
    yield from _requests(storm)
    yield from _shares(storm)
    for program, used in sorted(storm.processors.items(), key=lambda entry: -entry[1]):
        yield f"CPU of {program}, s", used
    yield "CPU of all of these, s", sum(storm.processors.values())
    for operation in _OPERATIONS:
        total = histograms.total(storm.kubelet, _RUNTIME, operation_type=operation)
        yield f"containerd's {operation}: mean, s", total.seconds / max(1, total.number)


def _requests(storm: Storm) -> Iterator[tuple[str, float]]:
    for rpc in dict.fromkeys(request.rpc for request in (*storm.starting, *storm.ending)):
        own = [request.seconds for request in (*storm.starting, *storm.ending) if request.rpc == rpc]
        yield f"{rpc}: requests", len(own)
        yield f"{rpc}: sum, ms", 1000 * sum(own)
        yield f"{rpc}: median, ms", 1000 * statistics.median(own)
        yield f"{rpc}: maximum, ms", 1000 * max(own)
        if rpc in _BY_KUBELET:
            yield f"{rpc}: sum according to the kubelet, ms", 1000 * storm.waited(rpc).seconds


def _shares(storm: Storm) -> Iterator[tuple[str, float]]:
    if not storm.expected:
        return
    waited = sum(storm.waited(rpc).seconds for rpc in dict.fromkeys(request.rpc for request in storm.starting))
    yield "plugin's share of the pods' start time, %", 100 * waited / sum(storm.start_seconds)
    yield "plugin's share of the storm's wall time, %", 100 * busy_seconds(storm.starting) / storm.wall
    cluster = sum(seconds for program, seconds in storm.processors.items() if program not in {BENCH, OTHERS})
    yield "plugin's share of the cluster's CPU time, %", 100 * storm.processors[PLUGIN] / cluster
