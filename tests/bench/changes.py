"""Measures of devices that appear one after another, and beside one that flaps."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.bench import measures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aosp_plugin.framework.api import deviceplugin_pb2 as pb
    from tests.bench.samples import Samples
    from tests.bench.trial import Trial

PAUSE = 0.15
"""Seconds between two devices that appear."""


def consecutive(trials: Sequence[Trial], count: int, rounds: int, samples: Samples) -> None:
    """Create devices beyond ``count`` one at a time; measure the time from each to the message that has it."""
    for trial in trials:
        with measures.recording(samples, trial, "consecutive"):
            _appear(trial, count, rounds, "consecutive", samples, by_count=True)
            _restore(trial, count)


def beside_flapping(
    trials: Sequence[Trial], count: int, period: float, seconds: float, rounds: int, samples: Samples
) -> None:
    """Measure the same beside a device that appears or disappears every ``period`` seconds.

    Measure also how many messages the flapping device alone causes in ``seconds``, before the others appear. Plugins
    whose device IDs are not the names of the devices are not measured: their lists do not show which one is new.
    """
    for trial in trials:
        if not is_healthy(trial.devices.name(0), trial.kubelet.messages[-1].devices):
            continue
        with measures.recording(samples, trial, "beside_flapping", "flapping_messages"):
            with flapping(trial, count, period):
                before = len(trial.kubelet.messages)
                time.sleep(seconds)
                samples.add(trial, "flapping_messages", len(trial.kubelet.messages) - before)
                _appear(trial, count + 1, rounds, "beside_flapping", samples, by_count=False)
            _restore(trial, count)


def _restore(trial: Trial, count: int) -> None:
    """Delete the devices beyond ``count``, and wait for the message without them."""
    trial.devices.fill(count)
    trial.kubelet.has(count)


def _appear(trial: Trial, first: int, rounds: int, key: str, samples: Samples, *, by_count: bool) -> None:
    """Create devices from number ``first`` on, each when the previous one is listed; find them by count or by name."""
    began = time.perf_counter()
    for number in range(first, first + rounds):
        created = trial.devices.make(number)
        if by_count:
            listed = trial.kubelet.has(number + 1)
        else:
            listed = trial.kubelet.listed(partial(is_healthy, trial.devices.name(number)))
        samples.add(trial, key, listed.at - created)
        if time.perf_counter() - began > measures.MAX_SECONDS:
            return
        time.sleep(max(0.0, created + PAUSE - time.perf_counter()))


def is_healthy(name: str, devices: Sequence[pb.Device]) -> bool:
    """Return whether a list has this device as healthy."""
    return any(name == device.ID and device.health == "Healthy" for device in devices)


@contextlib.contextmanager
def flapping(trial: Trial, number: int, period: float) -> Iterator[None]:
    """Create or remove a device every ``period`` seconds, inside the context."""
    stop = threading.Event()

    def flap() -> None:
        while not stop.wait(period):
            trial.devices.make(number)
            stop.wait(period)
            trial.devices.remove(number)

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
