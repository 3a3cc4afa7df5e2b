"""A soak test in minutes: many hotplugs and many kubelet restarts.

It records the plugin's file descriptors, threads and memory; growth with the count is a leak.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
from typing import TYPE_CHECKING

from tests.bench import measures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.bench.trial import Trial

DEVICES = 1000
BATCH = 500
"""The number of hotplugs after which the kubelet must have the right devices."""

RECORDS = 50
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


def soak(trial: Trial, hotplugs: int, restarts: int, say: Callable[[str], None]) -> list[Note]:
    """Run the hotplugs, then the restarts; return the records, with the first and the last one.

    Raises TimeoutError if the kubelet does not get the right devices.
    """
    notes: list[Note] = []
    with measures.running([trial], DEVICES):
        for count in _hotplugs(trial, hotplugs):
            notes.append(_note(trial, count, 0))
            say(str(notes[-1]))
        for count in _restarts(trial, restarts):
            notes.append(_note(trial, hotplugs, count))
            say(str(notes[-1]))
    return notes


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
    return Note(hotplugs, restarts, trial.memory().resident, process.num_fds(), process.num_threads())


def plot(notes: Sequence[Note]) -> str:
    """Return an SVG: memory, descriptors and threads, over the hotplugs and then over the restarts."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and only plots require it
    from matplotlib import pyplot as plt  # noqa: PLC0415

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "soak"  # so that equal notes give equal files
    figure, both = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for axes, over in zip(both, ("hotplugs", "restarts"), strict=True):
        selected = [note for note in notes if (note.restarts > 0) == (over == "restarts")]
        for cost, title in (("resident", "memory, MB"), ("descriptors", "descriptors"), ("threads", "threads")):
            axes.plot(
                [getattr(note, over) for note in selected], [getattr(note, cost) for note in selected], label=title
            )
        axes.set_xlabel(over)
        axes.set_ylim(0, 1.1 * max(note.resident for note in notes))
        axes.grid(alpha=0.3)
    figure.legend(*both[0].get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False)
    output = io.StringIO()
    with contextlib.closing(output):
        figure.savefig(output, format="svg", bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        return output.getvalue()
