"""Hours squeezed into minutes: many nodes that come and go, many restarts of the kubelet, and what is left of it.

Descriptors, threads and memory of the plugin are noted on the way; what grows with the count is a leak.
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

NODES = 1000
AT_ONCE = 500
"""Nodes that come or go between two times that the kubelet has to agree."""

NOTES = 50
"""How often what is left is noted in each half."""


@dataclasses.dataclass(frozen=True)
class Note:
    """The plugin at rest, after so much."""

    hotplugs: int
    restarts: int
    resident: float
    """MB."""
    descriptors: int
    threads: int


def soak(trial: Trial, hotplugs: int, restarts: int, say: Callable[[str], None]) -> list[Note]:
    """Have so many nodes come or go, then the kubelet restart so often; return what was noted, first and last too.

    Raises TimeoutError where the kubelet does not have the devices in the end.
    """
    notes: list[Note] = []
    with measures.running([trial], NODES):
        for done in _hotplugs(trial, hotplugs):
            notes.append(_note(trial, done, 0))
            say(str(notes[-1]))
        for done in _restarts(trial, restarts):
            notes.append(_note(trial, hotplugs, done))
            say(str(notes[-1]))
    return notes


def _hotplugs(trial: Trial, count: int) -> Iterator[int]:
    """Yield how many there were, at rest."""
    rng = random.Random(10)  # noqa: S311 - which nodes
    there = set(range(NODES))
    rounds = -(-count // AT_ONCE)
    yield 0
    for number in range(1, rounds + 1):
        for _ in range(AT_ONCE):
            node = rng.randrange(2 * NODES)
            if node in there:
                trial.nodes.remove(node)
            else:
                trial.nodes.make(node)
            there ^= {node}
        trial.kubelet.has(len(there))
        if number % -(-rounds // NOTES) == 0 or number == rounds:
            yield number * AT_ONCE


def _restarts(trial: Trial, count: int) -> Iterator[int]:
    """Yield how many there were; every other time the directory is cleaned."""
    present = sum(device.health == "Healthy" for device in trial.kubelet.messages[-1].devices)
    for number in range(1, count + 1):
        trial.kubelet.stop()
        if number % 2:
            trial.kubelet.clean()
        trial.kubelet.start()
        trial.kubelet.has(present)
        if number % -(-count // NOTES) == 0 or number == count:
            yield number


def _note(trial: Trial, hotplugs: int, restarts: int) -> Note:
    process = trial.process
    return Note(hotplugs, restarts, trial.memory().resident, process.num_fds(), process.num_threads())


def plot(notes: Sequence[Note]) -> str:
    """Return an SVG: memory, descriptors and threads, over the hotplugs and then over the restarts."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and is for this alone
    from matplotlib import pyplot as plt  # noqa: PLC0415

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "soak"  # so that equal notes make an equal file
    figure, both = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for axes, over in zip(both, ("hotplugs", "restarts"), strict=True):
        some = [note for note in notes if (note.restarts > 0) == (over == "restarts")]
        for cost, title in (("resident", "memory, MB"), ("descriptors", "descriptors"), ("threads", "threads")):
            axes.plot([getattr(note, over) for note in some], [getattr(note, cost) for note in some], label=title)
        axes.set_xlabel(over)
        axes.set_ylim(0, 1.1 * max(note.resident for note in notes))
        axes.grid(alpha=0.3)
    figure.legend(*both[0].get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False)
    drawn = io.StringIO()
    with contextlib.closing(drawn):
        figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        return drawn.getvalue()
