"""A soak test in minutes: many hotplugs and many kubelet restarts.

It records the plugin's file descriptors, threads and memory; growth with the count is a leak.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

from tests.bench import measures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.trial import Trial

DEVICES = 1000
BATCH = 500
"""The number of hotplugs after which the kubelet must have the right devices."""

RECORDS = 10
"""The number of records of each half."""


@dataclasses.dataclass(frozen=True)
class Note:
    """The resource usage of the idle plugin after a number of hotplugs and restarts."""

    hotplugs: int
    restarts: int
    resident: float
    """MB."""
    descriptors: int
    threads: int


def soak(trial: Trial, hotplugs: int, restarts: int) -> Iterator[Note]:
    """Run the hotplugs, then the restarts; yield a record from time to time, also the first and the last one.

    Raises TimeoutError if the kubelet does not get the right devices.
    """
    with measures.running([trial], DEVICES):
        for count in _hotplugs(trial, hotplugs):
            yield _note(trial, count, 0)
        for count in _restarts(trial, restarts):
            yield _note(trial, hotplugs, count)


def _hotplugs(trial: Trial, count: int) -> Iterator[int]:
    """Yield the number of hotplugs so far, when the plugin is idle."""
    rng = random.Random(10)  # noqa: S311 - which nodes
    present = set(range(DEVICES))
    rounds = -(-count // BATCH)
    yield 0
    for number in range(1, rounds + 1):
        for _ in range(BATCH):
            device = rng.randrange(2 * DEVICES)
            if device in present:
                trial.devices.remove(device)
            else:
                trial.devices.make(device)
            present ^= {device}
        trial.kubelet.has(len(present))
        if number % -(-rounds // RECORDS) == 0 or number == rounds:
            yield number * BATCH


def _restarts(trial: Trial, count: int) -> Iterator[int]:
    """Yield the number of restarts so far; every other restart cleans the directory."""
    present = sum(device.health == "Healthy" for device in trial.kubelet.messages[-1].devices)
    for number in range(1, count + 1):
        trial.kubelet.stop()
        if number % 2:
            trial.kubelet.clean()
        trial.kubelet.start()
        trial.kubelet.has(present)
        if number % -(-count // RECORDS) == 0 or number == count:
            yield number


def _note(trial: Trial, hotplugs: int, restarts: int) -> Note:
    process = trial.process
    return Note(hotplugs, restarts, trial.resident(), process.num_fds(), process.num_threads())
