"""``python -m tests.bench``: measure this project's plugin, and any other, in one run."""

from __future__ import annotations

import contextlib
import sys

import click
from rich.console import Console

from tests.bench import contestants, figures, measures, peer
from tests.bench.figures import Samples
from tests.bench.trial import Trial, trial

COUNT = 10_000
MEMORY_AT = (1_000, 10_000, 100_000)


@click.group()
def bench() -> None:
    """Measure device plugins, each with a kubelet and nodes of its own, turn by turn in one run."""


@bench.command()
@click.option("--plugin", "others", multiple=True, metavar="NAME=COMMAND", help=contestants.Contestant.command.__doc__)
@click.option("--peer", "with_peer", is_flag=True, help="Build squat/generic-device-plugin and measure it, too.")
@click.option("--quick", is_flag=True, help="Fewer rounds, and no 100,000 devices.")
@click.option("--json", "file", type=click.File("w"), help="Write the figures here, for compare.")
def run(others: tuple[str, ...], with_peer: bool, quick: bool, file: click.utils.LazyFile | None) -> None:  # noqa: FBT001 - click passes them by name
    """Measure, and print the table."""
    taking_part = [contestants.PLUGIN, *contestants.EMPTY_HANDLERS, *map(contestants.parse, others)]
    if with_peer:
        taking_part.append(peer.contestant())
    samples = Samples()
    with contextlib.ExitStack() as stack:
        trials = [stack.enter_context(trial(one)) for one in taking_part]
        measure(trials, samples, quick=quick)
    result = samples.run({one.name: one.command for one in taking_part})
    Console(width=200 if not sys.stdout.isatty() else None).print(figures.table(result))
    if file is not None:
        file.write(figures.as_json(result))


def measure(trials: list[Trial], samples: Samples, *, quick: bool) -> None:
    """Take every figure of every contestant that has it."""
    busy = [one for one in trials if not one.contestant.idle]
    few = 4 if quick else 1
    say("starts and ends")
    measures.starts(trials, COUNT, 12 // few, samples)
    say("memory")
    for count in MEMORY_AT[: 2 if quick else 3]:
        measures.memory(trials, count, samples)
    with measures.running(trials, COUNT):
        say("at rest")
        measures.idle(trials, 30 / few, samples)
        say("allocations")
        measures.allocations(trials, 24 // few, 100, samples)
        measures.preferences(busy, 12 // few, samples)
        say("nodes that come and go")
        measures.hotplugs(busy, COUNT, 40 // few, samples)
        say("restarts of the kubelet")
        measures.restarts(busy, COUNT, 8 // few, samples)
    say("bursts")
    for _ in range(4 // few):
        measures.burst(busy, COUNT, samples)
    if not quick:
        say("100,000 devices")
        measures.many(busy, 100_000, 3, samples)


def say(what: str) -> None:
    """Tell how far it is."""
    click.echo(f"# {what}", err=True)


@bench.command()
@click.argument("before", type=click.File())
@click.argument("after", type=click.File())
@click.option("--against", default=contestants.EMPTY_HANDLERS[0].name, show_default=True, help="What others stand to.")
def compare(before: click.utils.LazyFile, after: click.utils.LazyFile, against: str) -> None:
    """Print two runs' files beside each other."""
    runs = [figures.read(file.read()) for file in (before, after)]
    Console(width=160).print(figures.comparison(*runs, against))


if __name__ == "__main__":
    bench()
