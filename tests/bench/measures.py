"""The measures: each uses trials in turns, so that noise of the machine meets all of them.

They assert nothing. A trial that cannot do what is measured has no sample, and the others go on.
"""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.bench import caller
from tests.bench.kubelet import allocate
from tests.bench.trial import Trial

Medians = Mapping[str, float]
"""The median of the samples by the name of the contestant, without those that have none."""

RANDOM = random.Random(6)  # noqa: S311 - which devices, and when

WARM_UP = 20
"""Calls on a new connection before those that are measured."""

SETTLE = 2.0
"""Seconds after which a plugin is idle after a start or a change."""

MAX_SECONDS = 12.0
"""The time limit for the samples of one figure of one plugin, because plugins that poll are slow."""


def measure(trials: Sequence[Trial], count: int, divisor: int = 1) -> Mapping[str, Medians]:
    """Return all figures of all trials with ``count`` devices, by the name of the figure.

    Times are in milliseconds, memory is in megabytes (10^6 bytes). ``divisor`` divides the number of rounds.
    """
    busy = [trial for trial in trials if not trial.contestant.idle]
    found = {"listed": in_turns(trials, 12 // divisor + 1, lambda trial: start(trial, count), warm_up=1)}
    with running(trials, count):
        found["rss"] = in_turns(trials, 1, memory)
        found["idle"] = idle(trials, 30 / divisor)
        found["allocate"] = in_turns(trials, 24 // divisor, allocation)
        found["appears"] = in_turns(busy, 20 // divisor, lambda trial: change(trial, count, appears=True))
        found["vanishes"] = in_turns(busy, 20 // divisor, lambda trial: change(trial, count, appears=False))
        found["restart_cleaned"] = in_turns(busy, 8 // divisor, lambda trial: restart(trial, count, cleans=True))
        found["restart_replaced"] = in_turns(busy, 8 // divisor, lambda trial: restart(trial, count, cleans=False))
    return found


def in_turns(
    trials: Sequence[Trial], rounds: int, sample: Callable[[Trial], float], *, warm_up: int = 0
) -> dict[str, float]:
    """Return the medians of what ``sample`` returns, which is called with all trials in each round.

    The first ``warm_up`` samples of each are dropped. After a failure a trial gets no further calls, and neither after
    MAX_SECONDS if it has a sample.
    """
    samples: dict[str, list[float]] = {trial.contestant.name: [] for trial in trials}
    left = dict.fromkeys(samples, MAX_SECONDS)
    taking_part = list(trials)
    for _ in range(rounds):
        for trial in [*taking_part]:
            name, began = trial.contestant.name, time.perf_counter()
            try:
                samples[name].append(sample(trial))
            except (TimeoutError, OSError, caller.CallError):
                taking_part.remove(trial)
                continue
            left[name] -= time.perf_counter() - began
            if left[name] <= 0 and len(samples[name]) > warm_up:
                taking_part.remove(trial)
    return {name: statistics.median(values[warm_up:]) for name, values in samples.items() if values[warm_up:]}


def start(trial: Trial, count: int) -> float:
    """Return the time from the start of the process until ``count`` devices are listed."""
    trial.devices.fill(count)
    with started(trial) as at:
        listed = trial.kubelet.has(count).at - at
        time.sleep(0.2)  # a plugin may still be busy after its list
    return listed * 1e3


@contextlib.contextmanager
def started(trial: Trial) -> Iterator[float]:
    """Run a kubelet and the plugin; yield the time of the plugin's start."""
    trial.kubelet.clean()
    trial.kubelet.start()
    try:
        yield trial.start()
    finally:
        trial.stop()
        trial.kubelet.stop()


@contextlib.contextmanager
def running(trials: Sequence[Trial], count: int) -> Iterator[None]:
    """Run all plugins with ``count`` devices each, and wait until they are idle."""
    with contextlib.ExitStack() as stack:
        for trial in trials:
            trial.devices.fill(count)
            stack.enter_context(started(trial))
            trial.kubelet.has(count)
        time.sleep(SETTLE)
        yield


def memory(trial: Trial) -> float:
    """Return the resident memory of a plugin that has done everything once."""
    trial.exercise()
    time.sleep(SETTLE)
    return trial.resident()


def idle(trials: Sequence[Trial], seconds: float) -> dict[str, float]:
    """Return the CPU time of idle plugins, in milliseconds a second."""
    before = [trial.processor_seconds() for trial in trials]
    began = time.perf_counter()
    time.sleep(seconds)
    passed = time.perf_counter() - began
    return {
        trial.contestant.name: (trial.processor_seconds() - used) / passed * 1000
        for trial, used in zip(trials, before, strict=True)
    }


def allocation(trial: Trial) -> float:
    """Return the median time of Allocate for three devices, of 100 calls by one caller."""
    healthy = [device.ID for device in trial.kubelet.messages[-1].devices if device.health == "Healthy"]
    requests = [allocate(RANDOM.sample(healthy, 3)) for _ in range(WARM_UP + 100)]
    durations = caller.call(caller.program(), trial.kubelet.plugin_socket, requests, warm_up=WARM_UP)
    return statistics.median(durations) * 1e3


def change(trial: Trial, count: int, *, appears: bool) -> float:
    """Return the time from the creation or the removal of a device to the message, and undo the change."""
    time.sleep(RANDOM.uniform(0.3, 0.5))
    number = count if appears else count - 1
    do, undo = trial.devices.make, trial.devices.remove
    if not appears:
        do, undo = undo, do
    changed = do(number)
    listed = trial.kubelet.has(count + 1 if appears else count - 1).at
    undo(number)
    trial.kubelet.has(count)
    return (listed - changed) * 1e3


def restart(trial: Trial, count: int, *, cleans: bool) -> float:
    """Return the time from the kubelet's new socket to all devices. With ``cleans``, it removes all sockets first."""
    trial.kubelet.stop()
    if cleans:
        trial.kubelet.clean()
    restarted = trial.kubelet.start()
    back = trial.kubelet.has(count).at
    time.sleep(0.3)
    return (back - restarted) * 1e3
