"""Many nodes: plugins beside each other on one machine, and what a fleet costs the API server by simulation.

A kubelet computes its node's status every 10 s with up to 4 % of jitter, and sends it only where it has changed, or
every 5 min otherwise (pkg/kubelet/kubelet.go ``JitterUntil(kl.syncNodeStatus, ...)``, kubelet_node_status.go
``tryUpdateNodeStatus``, apis/config/v1beta1/defaults.go). Allocatable is part of it. So what flaps between two looks of
the kubelet is never seen, and a host costs at most one request in 10 s, beside the renewal of its lease, which is one
in 10 s whatever happens.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple

from tests.bench import measures
from tests.bench.figures import Samples, summary
from tests.bench.trial import trial

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from tests.bench.contestants import Contestant
    from tests.bench.trial import Trial

STATUS_PERIOD, STATUS_JITTER, REPORT_PERIOD = 10.0, 0.04, 300.0
"""The kubelet's, in seconds and as a share."""


class Together(NamedTuple):
    """What so many plugins cost on one machine."""

    plugins: int
    devices: int
    resident: float
    """MB each, the mean."""
    proportional: float
    """MB each, the mean: what they share counts once."""
    started: float
    """Seconds until the last one's devices are listed."""
    idle: float
    """Milliseconds of processor time a second, of all."""
    hotplug: float
    """Milliseconds, the median over all of them."""


def together(contestant: Contestant, plugins: int, devices: int) -> Together:
    """Run them all at once, each with a kubelet of its own."""
    samples = Samples()
    with contextlib.ExitStack() as stack:
        trials = [stack.enter_context(trial(contestant)) for _ in range(plugins)]
        started = start_all(trials, devices)
        memory = [one.memory() for one in trials]
        measures.idle(trials, 20, samples)
        idle = sum(samples.of(trials[0], "idle"))
        for one in trials:
            measures.hotplugs([one], devices, 1, samples)
        plugged = [*samples.of(trials[0], "appears"), *samples.of(trials[0], "vanishes")]
        for one in trials:
            one.stop()
    resident, proportional = (sum(figures) / plugins for figures in zip(*memory, strict=True))
    return Together(plugins, devices, resident, proportional, started, idle, summary(plugged, 1e3).median)


def start_all(trials: Sequence[Trial], devices: int) -> float:
    """Start all at once; return the seconds until the last one has listed its devices, and be at rest then."""
    for one in trials:
        one.nodes.fill(devices)
        one.kubelet.start()
    began = time.perf_counter()
    for one in trials:
        one.start()
    last = max(one.kubelet.has(devices).at for one in trials)
    time.sleep(measures.SETTLE)
    return last - began


def flapping(contestant: Contestant, period: float, seconds: float) -> tuple[int, int]:
    """Have one node come and go, ``period`` seconds each; return how often it did, and how many messages that made."""
    with trial(contestant) as one, measures.running([one], 10):
        before, flaps = len(one.kubelet.messages), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            one.nodes.make(10)
            time.sleep(period)
            one.nodes.remove(10)
            time.sleep(period)
            flaps += 1
        time.sleep(measures.SETTLE)
        return flaps, len(one.kubelet.messages) - before


class Updates(NamedTuple):
    """Requests a second of a whole fleet."""

    flaps: float
    """What the plugins tell their kubelets."""
    status: float
    """What the kubelets tell the API server of it."""
    without: float
    """The same where no node flaps."""


def status_updates(hosts: int, flaps_per_hour: float, lasting: float, seconds: float, rng: random.Random) -> Updates:
    """Simulate a fleet in which each host's allocatable flaps at random, each time for ``lasting`` seconds."""
    told = sent = calm = 0
    for _ in range(hosts):
        flaps = list(_flaps(flaps_per_hour / 3600, lasting, seconds, rng))
        looks = list(_looks(seconds, rng))
        told += 2 * len(flaps)
        sent += _sent(looks, flaps)
        calm += _sent(looks, [])
    return Updates(told / seconds, sent / seconds, calm / seconds)


def _flaps(rate: float, lasting: float, seconds: float, rng: random.Random) -> Iterator[tuple[float, float]]:
    """Yield when each begins and ends; none begins before the last has ended."""
    at = rng.expovariate(rate) if rate else seconds
    while at < seconds:
        yield at, at + lasting
        at += lasting + rng.expovariate(rate)


def _looks(seconds: float, rng: random.Random) -> Iterator[float]:
    """Yield when the kubelet computes its node's status."""
    at = rng.uniform(0, STATUS_PERIOD)
    while at < seconds:
        yield at
        at += STATUS_PERIOD * (1 + rng.uniform(0, STATUS_JITTER))


def _sent(looks: Sequence[float], flaps: Sequence[tuple[float, float]]) -> int:
    """Return at how many looks the status is sent: where it differs from the last one, or that is too long ago."""
    sent, last, before, next_flap = 0, looks[0] if looks else 0.0, False, 0
    for at in looks:
        while next_flap < len(flaps) and flaps[next_flap][1] <= at:
            next_flap += 1
        now = next_flap < len(flaps) and flaps[next_flap][0] <= at
        if now != before or at - last >= REPORT_PERIOD:
            sent, last, before = sent + 1, at, now
    return sent
