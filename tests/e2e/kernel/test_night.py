"""A long run of a node with a hundred phones, on which what happens is drawn by a seed.

``E2E_NIGHT="EVENTS PODS SECONDS SEED"`` sets the numbers of events and of pods, the least number of seconds of the
guest's clock from one event to the next, and the seed.
"""

import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

import pytest

from tests.e2e.common.processes import run
from tests.e2e.common.waiting import until
from tests.e2e.kernel import night, phones, pods, systemd
from tests.e2e.kernel.night import EVENTS, Night

_EVENTS, _PODS, _SECONDS, _SEED = map(int, (os.environ.get("E2E_NIGHT") or f"{4 * len(EVENTS)} 24 0 1").split())
_WARM: Final = 1.1
"""By what factor the memory of a process may grow."""

Figures = dict[str, int]


@pytest.fixture(scope="module")
def node() -> Night:
    """Run the plugin and the pods, with a small disk for the kubelet."""
    until(systemd.is_up, "systemd is up")
    host = pods.start_host(systemd=True, evictionHard=night.EVICTION, localStorageCapacityIsolation=True)
    run("mount", "-o", "remount,size=96m", str(night.KUBELET))
    world = pods.deployed(host, "privileged", set(phones.phones(night.COUNT)), on="night")
    node = Night(world, host.runtime, random.Random(_SEED))  # noqa: S311 - repeatable
    for _ in range(_PODS):
        node.place()
    node.settle()
    return node


@pytest.mark.timeout(0)
def test_night(node: Night) -> None:
    """Through all events, no phone is lost or given twice; then nothing has grown since the first round of them."""
    start, samples = time.monotonic(), [node.figures()]
    lives = [(node.lives(), samples[0])]
    _say(f"{'event':24} {'second':>6} {'phones':>6}  {'  '.join(samples[0])}")
    events = [event for _ in range(0, _EVENTS, len(EVENTS)) for event in node.random.sample(EVENTS, len(EVENTS))]
    for number, event in enumerate(events[:_EVENTS]):
        time.sleep(max(0, start + number * _SECONDS - time.monotonic()))
        node.crash(node.random.randrange(3))
        event(node)
        node.settle()
        node.tally[event.__name__.replace("_", " ")] += 1
        figures = node.figures()
        lives.append((node.lives(), figures))
        if node.count == night.COUNT and number >= len(EVENTS):
            samples.append(figures)
        _say(f"{event.__name__:24} {time.monotonic() - start:6.0f} {node.count:6}  {_row(figures.values(), figures)}")
    for name, number in sorted(node.tally.items()):
        _say(f"{name}: {number}")
    samples = samples[1:] or samples
    _say(f"{'settled, same phones':28} {'first':>8} {'least':>8} {'most':>8} {'last':>8}")
    for name in samples[0]:
        row = [each[name] for each in samples]
        _say(f"{name:28} {row[0]:8} {min(row):8} {max(row):8} {row[-1]:8}")
    assert not grown(samples) | grown_in_life(lives)


def grown(samples: Sequence[Figures]) -> set[str]:
    """Return the figures of which all in the last third are larger than all in the first third."""
    third = len(samples) // 3
    first, last = samples[:third], samples[len(samples) - third :]
    return {
        name
        for name in samples[0]
        if third and min(each[name] for each in last) > _tolerated(name, max(each[name] for each in first))
    }


def grown_in_life(samples: Sequence[tuple[dict[str, str], Figures]]) -> set[str]:
    """Return the figures of processes that are larger in the end of each life of the process than after its start."""
    found = set()
    for name in samples[0][1]:
        spans: dict[str, list[int]] = {}
        for lives, figures in samples:
            if "mounts" not in name and (life := lives.get(name.split(":")[0])):
                spans.setdefault(life, []).append(figures[name])
        long = [span for span in spans.values() if len(span) > 2]
        if long and all(span[-1] > _tolerated(name, span[0]) for span in long):
            found.add(f"{name} {long}")
    return found


def _tolerated(name: str, value: int) -> float:
    return value * _WARM if name.endswith("KiB") else value


def _row(values: Iterable[int], names: Iterable[str]) -> str:
    return "  ".join(f"{value:{len(name)}}" for value, name in zip(values, names, strict=True))


def _say(line: str) -> None:
    sys.stdout.write(f"# {line}\n")
