"""``python -m tests.bench``: measure this project's plugin, and any other, in one run."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import IO

import click
from rich.console import Console

from tests.bench import contestants, figures, fleet, growth, measures, soak
from tests.bench.figures import Samples
from tests.bench.trial import Trial, trial

COUNT = 10_000
MEMORY_AT = (1_000, 10_000, 100_000)


@click.group()
def bench() -> None:
    """Measure device plugins, each with a kubelet and nodes of its own, turn by turn in one run."""


@bench.command()
@click.option("--plugin", "others", multiple=True, metavar="NAME=COMMAND", help=contestants.Contestant.command.__doc__)
@click.option("--quick", is_flag=True, help="Fewer rounds, and no 100,000 devices.")
@click.option("--json", "file", type=click.File("w"), help="Write the figures here, for compare.")
def run(others: tuple[str, ...], quick: bool, file: IO[str] | None) -> None:  # noqa: FBT001 - click passes them by name
    """Measure, and print the table."""
    taking_part = [contestants.PLUGIN, *contestants.EMPTY_HANDLERS, *map(contestants.parse, others)]
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
def compare(before: IO[str], after: IO[str], against: str) -> None:
    """Print two runs' files beside each other."""
    runs = [figures.read(file.read()) for file in (before, after)]
    Console(width=160).print(figures.comparison(runs, against))


@bench.command(name="growth")
@click.option("--json", "file", type=click.File("w"), help="Write the rows here.")
@click.option("--plot", type=click.File("w"), help="Write the plot here, as SVG.")
@click.option("--from", "rows_file", type=click.File(), help="Take the rows from this file, and measure nothing.")
def show_growth(file: IO[str] | None, plot: IO[str] | None, rows_file: IO[str] | None) -> None:
    """Measure this project's plugin with 1,000 to 130,000 devices, and beyond."""
    if rows_file is not None:
        rows = growth.read(rows_file.read())
    else:
        with trial(contestants.PLUGIN) as one:
            rows = []
            for count in growth.COUNTS:
                say(f"{count:,} devices")
                rows.append(growth.row(one, count, 15))
            told, size, complaint = growth.beyond(one, growth.BEYOND)
            click.echo(f"of {growth.BEYOND:,} devices {told:,} are told, in {size:,} bytes; the log:\n  {complaint}")
    Console(width=140).print(growth.table(rows))
    if file is not None:
        file.write(growth.as_json(rows))
    if plot is not None:
        plot.write(growth.plot(rows))


@bench.command(name="fleet")
@click.option("--plugins", default=50, show_default=True)
@click.option("--devices", default=360, show_default=True)
def show_fleet(plugins: int, devices: int) -> None:
    """Run many plugins at once, then simulate what a fleet's flapping nodes cost the API server."""
    click.echo(fleet.together(contestants.PLUGIN, plugins, devices))
    for period in (0.005, 0.05, 0.5):
        flaps, messages = fleet.flapping(contestants.PLUGIN, period, 20)
        click.echo(f"a node that comes and goes, {period:g} s each: {flaps} times, {messages} messages in 20 s")
    rng = random.Random(9)  # noqa: S311 - a simulation
    for flaps_per_hour, lasting in ((1, 60), (60, 5), (360, 1), (36_000, 0.05)):
        updates = fleet.status_updates(1000, flaps_per_hour, lasting, 3600, rng)
        click.echo(f"1,000 hosts, {flaps_per_hour:,} flaps an hour each, {lasting:g} s long: {updates}")


@bench.command(name="soak")
@click.option("--hotplugs", default=100_000, show_default=True)
@click.option("--restarts", default=10_000, show_default=True)
@click.option("--plot", type=click.File("w"), help="Write the plot here, as SVG.")
def show_soak(hotplugs: int, restarts: int, plot: IO[str] | None) -> None:
    """Have nodes come and go, and the kubelet restart, many times; tell what is left of it."""
    with trial(contestants.PLUGIN) as one:
        notes = soak.soak(one, hotplugs, restarts, say)
    for note in (notes[0], next(one for one in notes if one.hotplugs == hotplugs), notes[-1]):
        click.echo(note)
    if plot is not None:
        plot.write(soak.plot(notes))


if __name__ == "__main__":
    bench()
