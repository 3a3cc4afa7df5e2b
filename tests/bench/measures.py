"""Measures, for one or a few figures each: they use the trials in turns, and add samples for each.

They assert nothing. What a trial cannot do is recorded as a failure, and the others go on.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING

from tests.bench import caller
from tests.bench.kubelet import allocate, prefer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.bench.caller import Calls
    from tests.bench.samples import Samples
    from tests.bench.trial import Trial

CALLERS = 8
WARM_UP = 20
"""Calls on a new connection before those that are measured."""

SETTLE = 2.0
"""Seconds after which a plugin is idle after a start or a change."""

MAX_SECONDS = 12.0
"""The time limit for the samples of one figure of one plugin, because plugins that poll are slow."""


@contextlib.contextmanager
def recording(samples: Samples, trial: Trial, *keys: str) -> Iterator[None]:
    """Record a failure of a trial for these keys, and go on."""
    try:
        yield
    except (TimeoutError, OSError, caller.CallError) as error:
        for key in keys:
            samples.fail(trial, key, error)


def starts(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """Measure start to registration, start to ``count`` listed devices, and SIGTERM to exit.

    A first start of each is not measured: it reads files from the disk, and Python may compile modules.
    """
    for trial in trials:
        trial.devices.fill(count)
        with started(trial):
            trial.kubelet.has(count)
    for _ in range(rounds):
        for trial in trials:
            trial.kubelet.clean()
            trial.kubelet.start()
            began = trial.start()
            samples.add(trial, "registered", trial.kubelet.registered() - began)
            samples.add(trial, "listed", trial.kubelet.has(count).at - began)
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
        trial.devices.fill(count)
        with recording(samples, trial, f"rss_{count}", f"pss_{count}"), started(trial):
            trial.kubelet.has(count)
            add_memory(trial, count, samples)


def add_memory(trial: Trial, count: int, samples: Samples) -> None:
    """Add the memory of a running plugin with ``count`` devices after it has done everything once."""
    trial.exercise()
    time.sleep(SETTLE)
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
    """Measure Allocate of three devices.

    One caller: seconds for each call. Eight callers: calls a second, and the plugin's CPU time for each of them.
    """
    rng = random.Random(6)  # noqa: S311 - which devices
    program = caller.program()
    for _ in range(rounds):
        for trial in trials:
            with recording(samples, trial, "allocate"):
                for seconds in _call(program, trial, _requests(trial, rng, WARM_UP + calls)).durations:
                    samples.add(trial, "allocate", seconds)
    for _ in range(max(rounds // 4, 1)):
        for trial in trials:
            with recording(samples, trial, "allocate_8", "allocate_processor"):
                requests = _requests(trial, rng, WARM_UP + CALLERS * calls)
                used = trial.processor_seconds()
                measured = _call(program, trial, requests, callers=CALLERS)
                used = trial.processor_seconds() - used
                samples.add(trial, "allocate_8", len(measured.durations) / measured.elapsed)
                samples.add(trial, "allocate_processor", used / len(requests))


def _call(program: Path, trial: Trial, requests: Sequence[bytes], callers: int = 1) -> Calls:
    return caller.call(program, trial.kubelet.plugin_socket, "Allocate", requests, callers=callers, warm_up=WARM_UP)


def _requests(trial: Trial, rng: random.Random, count: int) -> list[bytes]:
    ids = _free(trial)
    return [allocate(rng.sample(ids, 3)) for _ in range(count)]


def _free(trial: Trial) -> list[str]:
    """Return the devices that a kubelet can allocate."""
    return [device.ID for device in trial.kubelet.messages[-1].devices if device.health == "Healthy"]


def preferences(trials: Sequence[Trial], rounds: int, samples: Samples) -> None:
    """Measure GetPreferredAllocation of three of all free devices, which the kubelet sends in random order."""
    rng = random.Random(7)  # noqa: S311 - which devices
    program = caller.program()
    for _ in range(rounds):
        for trial in trials:
            ids = _free(trial)
            requests = [prefer(rng.sample(ids, len(ids)), 3) for _ in range(5)]
            with recording(samples, trial, "prefer"):
                socket = trial.kubelet.plugin_socket
                for seconds in caller.call(program, socket, "GetPreferredAllocation", requests, warm_up=1).durations:
                    samples.add(trial, "prefer", seconds)


def hotplugs(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """Measure the time from the creation and deletion of a device beyond ``count`` to the message."""
    rng = random.Random(8)  # noqa: S311 - when
    for trial in trials:
        began = time.perf_counter()
        with recording(samples, trial, "appears", "vanishes"):
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
            with recording(samples, trial, key):
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
        with recording(samples, trial, "burst_lag", "burst_messages", "burst_processor"), running([trial], 0):
            before, used = len(trial.kubelet.messages), trial.processor_seconds()
            last = trial.devices.burst(count)
            samples.add(trial, "burst_lag", trial.kubelet.has(count).at - last)
            time.sleep(SETTLE)
            samples.add(trial, "burst_messages", len(trial.kubelet.messages) - before)
            samples.add(trial, "burst_processor", trial.processor_seconds() - used)


def many(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """Measure start to ``count`` listed devices, and the memory at that; the first start is not measured.

    A plugin that cannot list so many has only failures.
    """
    for trial in trials:
        trial.devices.fill(count)
        with recording(samples, trial, f"listed_{count}", f"rss_{count}", f"pss_{count}"):
            with started(trial):
                trial.kubelet.has(count)
                add_memory(trial, count, samples)
            for _ in range(rounds):
                with started(trial) as at:
                    samples.add(trial, f"listed_{count}", trial.kubelet.has(count).at - at)


def growth(trials: Sequence[Trial], fewer: int, more: int, samples: Samples) -> None:
    """Add the bytes of resident memory for each device between two numbers of devices, from the samples of both."""
    for trial in trials:
        for least, most in zip(samples.of(trial, f"rss_{fewer}"), samples.of(trial, f"rss_{more}"), strict=False):
            samples.add(trial, "growth", (most - least) * 1e6 / (more - fewer))


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
