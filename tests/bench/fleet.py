"""Many plugins on one machine, and a simulation of the API requests of a fleet.

A kubelet computes its node's status every 10 s with up to 4 % of jitter, and sends it only if it has changed, or
every 5 min otherwise (pkg/kubelet/kubelet.go ``JitterUntil(kl.syncNodeStatus, ...)``, kubelet_node_status.go
``tryUpdateNodeStatus``, apis/config/v1beta1/defaults.go). Allocatable is part of it. So flaps between two
status computations are invisible, and a node costs at most one request in 10 s, besides the renewal of its lease every
10 s.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple

from tests.bench import measures
from tests.bench.samples import Samples, summary
from tests.bench.trial import trial

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from tests.bench.contestants import Contestant
    from tests.bench.trial import Trial

STATUS_PERIOD, STATUS_JITTER, REPORT_PERIOD = 10.0, 0.04, 300.0
"""The kubelet's periods in seconds, and the jitter as a share."""


class Together(NamedTuple):
    """The cost of several plugins on one machine."""

    plugins: int
    devices: int
    resident: float
    """MB for each plugin, the mean."""
    proportional: float
    """MB for each plugin, the mean; shared memory counts once."""
    started: float
    """Seconds until all plugins have listed their devices."""
    idle: float
    """CPU time of all plugins, in milliseconds a second."""
    hotplug: float
    """Milliseconds, the median of all plugins."""


def together(contestant: Contestant, plugins: int, devices: int) -> Together:
    """Run all plugins at once, each with a kubelet of its own."""
    samples = Samples()
    with contextlib.ExitStack() as stack:
        trials = [stack.enter_context(trial(contestant)) for _ in range(plugins)]
        started = start_all(trials, devices)
        memory = [running.memory() for running in trials]
        measures.idle(trials, 20, samples)
        idle = sum(samples.of(trials[0], "idle"))
        for running in trials:
            measures.hotplugs([running], devices, 1, samples)
        plugged = [*samples.of(trials[0], "appears"), *samples.of(trials[0], "vanishes")]
        for running in trials:
            running.stop()
    resident, proportional = (sum(figures) / plugins for figures in zip(*memory, strict=True))
    return Together(plugins, devices, resident, proportional, started, idle, summary(plugged, 1e3).median)


def start_all(trials: Sequence[Trial], devices: int) -> float:
    """Start all plugins, wait until they are idle, and return the seconds until all had listed their devices."""
    for running in trials:
        running.devices.fill(devices)
        running.kubelet.start()
    began = time.perf_counter()
    for running in trials:
        running.start()
    last = max(running.kubelet.has(devices).at for running in trials)
    time.sleep(measures.SETTLE)
    return last - began


def flapping(contestant: Contestant, period: float, seconds: float) -> tuple[int, int]:
    """Create and delete a device every ``period`` seconds; return the numbers of flaps and of messages."""
    with trial(contestant) as running, measures.running([running], 10):
        before, flaps = len(running.kubelet.messages), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            running.devices.make(10)
            time.sleep(period)
            running.devices.remove(10)
            time.sleep(period)
            flaps += 1
        time.sleep(measures.SETTLE)
        return flaps, len(running.kubelet.messages) - before


class Updates(NamedTuple):
    """Requests a second of a fleet."""

    flaps: float
    """Messages of the plugins to their kubelets."""
    status: float
    """Status updates of the kubelets to the API server."""
    without: float
    """Status updates without flapping devices."""


def status_updates(hosts: int, flaps_per_hour: float, lasting: float, seconds: float, rng: random.Random) -> Updates:
    """Simulate a fleet in which each node's allocatable flaps at random times, for ``lasting`` seconds each."""
    messages = sent = baseline = 0
    for _ in range(hosts):
        flaps = list(_flaps(flaps_per_hour / 3600, lasting, seconds, rng))
        computations = list(_computations(seconds, rng))
        messages += 2 * len(flaps)
        sent += _sent(computations, flaps)
        baseline += _sent(computations, [])
    return Updates(messages / seconds, sent / seconds, baseline / seconds)


def _flaps(rate: float, lasting: float, seconds: float, rng: random.Random) -> Iterator[tuple[float, float]]:
    """Yield start and end of each flap; flaps do not overlap."""
    at = rng.expovariate(rate) if rate else seconds
    while at < seconds:
        yield at, at + lasting
        at += lasting + rng.expovariate(rate)


def _computations(seconds: float, rng: random.Random) -> Iterator[float]:
    """Yield the times at which the kubelet computes its node's status."""
    at = rng.uniform(0, STATUS_PERIOD)
    while at < seconds:
        yield at
        at += STATUS_PERIOD * (1 + rng.uniform(0, STATUS_JITTER))


def _sent(computations: Sequence[float], flaps: Sequence[tuple[float, float]]) -> int:
    """Return how many computations send the status: it has changed, or the last report is too old."""
    sent, last, before, next_flap = 0, computations[0] if computations else 0.0, False, 0
    for at in computations:
        while next_flap < len(flaps) and flaps[next_flap][1] <= at:
            next_flap += 1
        now = next_flap < len(flaps) and flaps[next_flap][0] <= at
        if now != before or at - last >= REPORT_PERIOD:
            sent, last, before = sent + 1, at, now
    return sent
