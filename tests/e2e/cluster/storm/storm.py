"""One storm: create all pods at once, wait until they run, and delete them all."""

from __future__ import annotations

import itertools
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.e2e.cluster import phones
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.figures.claims import CLAIMS
from tests.e2e.cluster.storm import events, histograms, processors, recorder, requests
from tests.e2e.cluster.storm.evaluation import Storm
from tests.e2e.cluster.storm.scenes import LABEL
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.storm.events import Warned
    from tests.e2e.cluster.storm.histograms import Series, Total
    from tests.e2e.cluster.storm.recorder import StageRecorder
    from tests.e2e.cluster.storm.scenes import Stage

_THREADS: Final = 16
"""Pods that are created at the same time."""
_LIMIT: Final = 60.0
"""Seconds until all pods must run, or be gone; in addition to _LIMIT_PER_POD for each pod."""
_LIMIT_PER_POD: Final = 5.0
_SETTLE: Final = 5.0
"""Seconds from the last event to the first creation."""
_NUMBERS: Final = itertools.count(1)


class _Sample(NamedTuple):
    """What is counted before and after."""

    processors: dict[str, float]
    kubelet: dict[Series, Total]
    plugin: dict[Series, Total]


def run(cluster: Cluster, stage: Stage, stages: StageRecorder, count: int) -> Storm:
    """Run a storm of ``count`` pods on the cluster's first machine. Raises AssertionError if not all pods run."""
    storm = f"storm-{next(_NUMBERS)}"
    names = [f"{storm}-{number}" for number in range(count)]
    time.sleep(_SETTLE)
    before = _sample(cluster, stage)
    started = time.time()
    try:
        created = _create(cluster, [stage.pod(name, storm) for name in names])
        _wait_all(stages, (recorder.RUNNING, recorder.READY), names)
    except AssertionError as error:
        warnings = [event.text for event in _warnings(cluster, names)]
        raise AssertionError(f"{error}; {warnings}; {_states(cluster, storm)}") from error
    after = _sample(cluster, stage)
    restarts = _restarts(cluster, storm)
    deleted = time.time()
    cluster.api.text("DELETE", phones.collection("Pod"), query={"labelSelector": f"{LABEL}={storm}"}, seconds=60)
    _wait_all(stages, (recorder.GONE,), names)
    until(lambda: not cluster.api.list(CLAIMS), "the claims are gone", seconds=_LIMIT)
    answered = requests.parse(stage.log, started)
    return Storm(
        count=count,
        expected=stage.scene.rpcs,
        created=created,
        reached={
            name: stages.times(name, names)
            for name in (recorder.SCHEDULED, recorder.SANDBOX, recorder.RUNNING, recorder.READY)
        },
        deleted=deleted,
        gone=stages.times(recorder.GONE, names),
        starting=[request for request in answered if request.rpc in requests.STARTING],
        ending=[request for request in answered if request.rpc in requests.ENDING],
        processors={name: used - before.processors.get(name, 0.0) for name, used in after.processors.items()},
        kubelet=histograms.since(before.kubelet, after.kubelet),
        plugin=histograms.since(before.plugin, after.plugin),
        warnings=_warnings(cluster, names),
        called=requests.first_calls(stage.log, started),
        problems=[*restarts, *requests.problems(stage.log, started)],
    )


def remove_all(cluster: Cluster) -> None:
    """Delete all pods, and wait until they and their claims are gone."""
    path = phones.collection("Pod")
    cluster.api.text("DELETE", path, seconds=60)
    until(lambda: not cluster.api.list(path) and not cluster.api.list(CLAIMS), "pods and claims are gone", seconds=600)


def _create(cluster: Cluster, manifests: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Create pods, and return the time of each request."""

    def create(manifest: dict[str, Any]) -> tuple[str, float]:
        at = time.time()
        phones.create(cluster, manifest)
        return manifest["metadata"]["name"], at

    with ThreadPoolExecutor(_THREADS) as executor:
        return dict(executor.map(create, manifests))


def _wait_all(stages: StageRecorder, wanted: Iterable[str], pods: list[str]) -> None:
    for stage in wanted:

        def reached(stage: str = stage) -> bool:
            count = len(stages.times(stage, pods))
            assert count == len(pods), f"{count} of {len(pods)}"
            return True

        until(reached, f"all pods are {stage}", seconds=_LIMIT + _LIMIT_PER_POD * len(pods))


def _sample(cluster: Cluster, stage: Stage) -> _Sample:
    kubelet = cluster.api.text("GET", f"{CORE}/nodes/{cluster.machine.name}/proxy/metrics", seconds=60)
    plugin, pid = "", None
    if stage.driver is not None:
        pid = stage.driver.daemon.pid
        with urllib.request.urlopen(stage.metrics, timeout=60) as answer:  # noqa: S310 - an address of this sandbox
            plugin = answer.read().decode()
    return _Sample(processors.read(pid), histograms.parse(kubelet), histograms.parse(plugin))


def _warnings(cluster: Cluster, pods: Iterable[str]) -> list[Warned]:
    """Return the events of type Warning of these pods."""
    found = cluster.api.list(f"{CORE}/namespaces/{phones.DEFAULT}/events", fieldSelector="type=Warning")
    names = {*pods}
    return [events.parse(event) for event in found if event["involvedObject"]["name"] in names]


def _states(cluster: Cluster, storm: str) -> Counter[str]:
    pods = cluster.api.list(phones.collection("Pod"), labelSelector=f"{LABEL}={storm}")
    return Counter(phones.reason(pod) for pod in pods)


def _restarts(cluster: Cluster, storm: str) -> list[str]:
    """Return the names of the pods of which a container was started more than once."""
    pods = cluster.api.list(phones.collection("Pod"), labelSelector=f"{LABEL}={storm}")
    return [f"{pod['metadata']['name']} was restarted" for pod in pods if phones.container_of(pod)[1]]
