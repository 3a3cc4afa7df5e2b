"""One figure each. A measure takes trials, asks them turn by turn, and adds what it saw to the samples of each.

Nothing here asserts how long anything takes.
"""

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
"""Seconds after which a plugin that has just started, or changed, is at rest."""

LONGEST = 20.0
"""Seconds for the samples of one figure of one plugin: those that poll take as long for one as others for all."""


def starts(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """From the start of the process until it registers and until ``count`` devices are listed; SIGTERM to the end."""
    for trial in trials:
        trial.nodes.fill(count)
    for _ in range(rounds):
        for trial in trials:
            trial.kubelet.clean()
            trial.kubelet.start()
            started = trial.start()
            samples.add(trial, "registered", trial.kubelet.registered() - started)
            samples.add(trial, "listed", trial.kubelet.has(count).at - started)
            time.sleep(0.2)  # a plugin may still be busy with what it does after its list
            samples.add(trial, "exit", trial.stop())
            trial.kubelet.stop()


@contextlib.contextmanager
def running(trials: Sequence[Trial], count: int) -> Iterator[None]:
    """Have all of them at work, and at rest, with ``count`` nodes each."""
    with contextlib.ExitStack() as stack:
        for trial in trials:
            trial.nodes.fill(count)
            stack.enter_context(started(trial))
            trial.kubelet.has(count)
        time.sleep(SETTLE)
        yield


def memory(trials: Sequence[Trial], count: int, samples: Samples) -> None:
    """Resident and proportional memory with ``count`` devices, a while after the start."""
    for trial in trials:
        with contextlib.suppress(TimeoutError), running([trial], count):
            resident, proportional = trial.memory()
            samples.add(trial, f"rss_{count}", resident)
            samples.add(trial, f"pss_{count}", proportional)


def idle(trials: Sequence[Trial], seconds: float, samples: Samples) -> None:
    """Processor time while nothing happens, in milliseconds a second."""
    before = [trial.processor_seconds() for trial in trials]
    started = time.perf_counter()
    time.sleep(seconds)
    passed = time.perf_counter() - started
    for trial, used in zip(trials, before, strict=True):
        samples.add(trial, "idle", (trial.processor_seconds() - used) / passed * 1000)


def allocations(trials: Sequence[Trial], rounds: int, calls: int, samples: Samples) -> None:
    """Allocate of three devices: one caller, seconds a call; eight callers, calls a second."""
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
    """Return the seconds that each call took."""
    took = []
    for request in requests:
        asked = time.perf_counter()
        call(request)
        took.append(time.perf_counter() - asked)
    return took


def _requests(trial: Trial, rng: random.Random, count: int) -> list[bytes]:
    ids = _free(trial)
    return [allocate(rng.sample(ids, 3)) for _ in range(count)]


def _free(trial: Trial) -> list[str]:
    """Return the devices that a kubelet would hand out."""
    return [device.ID for device in trial.kubelet.messages[-1].devices if device.health == "Healthy"]


def preferences(trials: Sequence[Trial], rounds: int, samples: Samples) -> None:
    """GetPreferredAllocation of three of all free devices, which the kubelet sends in random order."""
    rng = random.Random(7)  # noqa: S311 - which devices, and when
    for _ in range(rounds):
        for trial in trials:
            ids = _free(trial)
            rng.shuffle(ids)
            question = prefer(ids, 3)
            with trial.kubelet.calling("GetPreferredAllocation") as call:
                samples.add(trial, "prefer", call_all(call, [question])[0])


def hotplugs(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """From a node that appears, and one that vanishes, to the message that says so. It is one beyond ``count``."""
    rng = random.Random(8)  # noqa: S311 - which devices, and when
    for trial in trials:
        begun = time.perf_counter()
        for _ in range(rounds):
            if time.perf_counter() - begun > LONGEST:
                break
            time.sleep(rng.uniform(0.3, 0.5))
            made = trial.nodes.make(count)
            samples.add(trial, "appears", trial.kubelet.has(count + 1).at - made)
            time.sleep(rng.uniform(0.3, 0.5))
            gone = trial.nodes.remove(count)
            samples.add(trial, "vanishes", trial.kubelet.has(count).at - gone)


def restarts(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """From the kubelet's new socket to all devices: with the directory cleaned, as it does, and without.

    A plugin that does not come back has no further sample.
    """
    for trial in trials:
        for key, cleans in (("restart_cleaned", True), ("restart_replaced", False)):
            begun = time.perf_counter()
            with contextlib.suppress(TimeoutError):
                for _ in range(rounds):
                    if time.perf_counter() - begun > LONGEST:
                        break
                    samples.add(trial, key, _restart(trial, count, cleans=cleans))
                    time.sleep(0.3)


def _restart(trial: Trial, count: int, *, cleans: bool) -> float:
    trial.kubelet.stop()
    if cleans:
        trial.kubelet.clean()
    back = trial.kubelet.start()
    return trial.kubelet.has(count).at - back


def burst(trials: Sequence[Trial], count: int, samples: Samples) -> None:
    """``count`` nodes as fast as they can be made, where there was none: messages, lag of the last, processor time."""
    for trial in trials:
        with running([trial], 0):
            before, used = len(trial.kubelet.messages), trial.processor_seconds()
            last = trial.nodes.burst(count)
            samples.add(trial, "burst_lag", trial.kubelet.has(count).at - last)
            time.sleep(SETTLE)
            samples.add(trial, "burst_messages", len(trial.kubelet.messages) - before)
            samples.add(trial, "burst_processor", trial.processor_seconds() - used)


def many(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """From the start until so many devices are listed; one that can't tell that many has no sample."""
    for trial in trials:
        trial.nodes.fill(count)
        with contextlib.suppress(TimeoutError):
            for _ in range(rounds):
                with started(trial) as at:
                    samples.add(trial, f"listed_{count}", trial.kubelet.has(count).at - at)


@contextlib.contextmanager
def started(trial: Trial) -> Iterator[float]:
    """Have a kubelet and the plugin at work; yield when the plugin was started."""
    trial.kubelet.clean()
    trial.kubelet.start()
    try:
        yield trial.start()
    finally:
        trial.stop()
        trial.kubelet.stop()
