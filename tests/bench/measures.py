"""Measures, for one figure each: they use the trials in turns, and add samples for each. They assert nothing."""

from __future__ import annotations

import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.bench.kubelet import allocate, prefer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.bench.figures import Samples
    from tests.bench.trial import Trial

CALLERS = 8
SETTLE = 2.0
"""Seconds after which a plugin is idle after a start or a change."""

MAX_SECONDS = 20.0
"""The time limit for the samples of one figure of one plugin, because plugins that poll are slow."""


def starts(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """Measure start to registration, start to ``count`` listed devices, and SIGTERM to exit."""
    for trial in trials:
        trial.devices.fill(count)
    for _ in range(rounds):
        for trial in trials:
            trial.kubelet.clean()
            trial.kubelet.start()
            started = trial.start()
            samples.add(trial, "registered", trial.kubelet.registered() - started)
            samples.add(trial, "listed", trial.kubelet.has(count).at - started)
            time.sleep(0.2)  # a plugin may still be busy after its list
            samples.add(trial, "exit", trial.stop())
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


def memory(trials: Sequence[Trial], count: int, samples: Samples) -> None:
    """Measure resident and proportional memory of idle plugins with ``count`` devices."""
    for trial in trials:
        with contextlib.suppress(TimeoutError), running([trial], count):
            resident, proportional = trial.memory()
            samples.add(trial, f"rss_{count}", resident)
            samples.add(trial, f"pss_{count}", proportional)


def idle(trials: Sequence[Trial], seconds: float, samples: Samples) -> None:
    """Measure the CPU time of idle plugins, in milliseconds a second."""
    before = [trial.processor_seconds() for trial in trials]
    started = time.perf_counter()
    time.sleep(seconds)
    passed = time.perf_counter() - started
    for trial, used in zip(trials, before, strict=True):
        samples.add(trial, "idle", (trial.processor_seconds() - used) / passed * 1000)


def allocations(trials: Sequence[Trial], rounds: int, calls: int, samples: Samples) -> None:
    """Measure Allocate of three devices: seconds for a call of one caller, calls a second of eight callers."""
    rng = random.Random(6)  # noqa: S311 - which devices, and when
    for trial in trials:
        with trial.kubelet.calling("Allocate") as call:
            call_all(call, _requests(trial, rng, 5 * calls))
    for _ in range(rounds):
        for trial in trials:
            with trial.kubelet.calling("Allocate") as call:
                for seconds in call_all(call, _requests(trial, rng, calls)):
                    samples.add(trial, "allocate", seconds)
    with ThreadPoolExecutor(CALLERS) as callers:
        for _ in range(max(rounds // 4, 1)):
            for trial in trials:
                with trial.kubelet.calling("Allocate") as call:
                    batches = [_requests(trial, rng, calls) for _ in range(CALLERS)]
                    started = time.perf_counter()
                    list(callers.map(lambda batch, call=call: call_all(call, batch), batches))
                    samples.add(trial, "allocate_8", CALLERS * calls / (time.perf_counter() - started))


def call_all(call: Callable[[bytes], bytes], requests: Sequence[bytes]) -> list[float]:
    """Return the seconds of each call."""
    durations = []
    for request in requests:
        started = time.perf_counter()
        call(request)
        durations.append(time.perf_counter() - started)
    return durations


def _requests(trial: Trial, rng: random.Random, count: int) -> list[bytes]:
    ids = _free(trial)
    return [allocate(rng.sample(ids, 3)) for _ in range(count)]


def _free(trial: Trial) -> list[str]:
    """Return the devices that a kubelet can allocate."""
    return [device.ID for device in trial.kubelet.messages[-1].devices if device.health == "Healthy"]


def preferences(trials: Sequence[Trial], rounds: int, samples: Samples) -> None:
    """Measure GetPreferredAllocation of three of all free devices, which the kubelet sends in random order."""
    rng = random.Random(7)  # noqa: S311 - which devices, and when
    for _ in range(rounds):
        for trial in trials:
            ids = _free(trial)
            rng.shuffle(ids)
            request = prefer(ids, 3)
            with trial.kubelet.calling("GetPreferredAllocation") as call:
                samples.add(trial, "prefer", call_all(call, [request])[0])


def hotplugs(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """Measure the time from the creation and deletion of a device beyond ``count`` to the message."""
    rng = random.Random(8)  # noqa: S311 - which devices, and when
    for trial in trials:
        began = time.perf_counter()
        for _ in range(rounds):
            if time.perf_counter() - began > MAX_SECONDS:
                break
            time.sleep(rng.uniform(0.3, 0.5))
            created = trial.devices.make(count)
            samples.add(trial, "appears", trial.kubelet.has(count + 1).at - created)
            time.sleep(rng.uniform(0.3, 0.5))
            deleted = trial.devices.remove(count)
            samples.add(trial, "vanishes", trial.kubelet.has(count).at - deleted)


def restarts(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """Measure the time from the kubelet's new socket to all devices: with the directory cleaned, and without.

    A plugin that does not register again has no further samples.
    """
    for trial in trials:
        for key, cleans in (("restart_cleaned", True), ("restart_replaced", False)):
            began = time.perf_counter()
            with contextlib.suppress(TimeoutError):
                for _ in range(rounds):
                    if time.perf_counter() - began > MAX_SECONDS:
                        break
                    samples.add(trial, key, _restart(trial, count, cleans=cleans))
                    time.sleep(0.3)


def _restart(trial: Trial, count: int, *, cleans: bool) -> float:
    trial.kubelet.stop()
    if cleans:
        trial.kubelet.clean()
    restarted = trial.kubelet.start()
    return trial.kubelet.has(count).at - restarted


def burst(trials: Sequence[Trial], count: int, samples: Samples) -> None:
    """Create ``count`` devices as fast as possible; measure messages, the lag of the last one, and CPU time."""
    for trial in trials:
        with running([trial], 0):
            before, used = len(trial.kubelet.messages), trial.processor_seconds()
            last = trial.devices.burst(count)
            samples.add(trial, "burst_lag", trial.kubelet.has(count).at - last)
            time.sleep(SETTLE)
            samples.add(trial, "burst_messages", len(trial.kubelet.messages) - before)
            samples.add(trial, "burst_processor", trial.processor_seconds() - used)


def many(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """Measure start to ``count`` listed devices; a plugin that cannot list so many has no sample."""
    for trial in trials:
        trial.devices.fill(count)
        with contextlib.suppress(TimeoutError):
            for _ in range(rounds):
                with started(trial) as at:
                    samples.add(trial, f"listed_{count}", trial.kubelet.has(count).at - at)


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
