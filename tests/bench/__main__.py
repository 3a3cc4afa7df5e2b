"""``python -m tests.bench``: measure this project's plugin and others in one run."""

from __future__ import annotations

import contextlib
import random
from typing import IO

import click

from tests.bench import contestants, figures, fleet, growth, measures, soak
from tests.bench.figures import Samples
from tests.bench.trial import Trial, trial

COUNT = 10_000
MEMORY_AT = (1_000, 10_000, 100_000)


@click.group()
def bench() -> None:
    """Measure device plugins, each with a kubelet and devices of its own, in turns in one run."""


@bench.command()
@click.option("--plugin", "further", multiple=True, metavar="NAME=COMMAND", help=contestants.Contestant.command.__doc__)
@click.option("--quick", is_flag=True, help="Run fewer rounds, without 100,000 devices.")
@click.option("--json", "file", type=click.File("w"), help="Write the figures to this file, for compare.")
def run(further: tuple[str, ...], quick: bool, file: IO[str] | None) -> None:  # noqa: FBT001 - click passes them by name
    """Measure all figures, and print a table."""
    participants = [contestants.PLUGIN, *contestants.EMPTY_HANDLERS, *map(contestants.parse, further)]
    samples = Samples()
    with contextlib.ExitStack() as stack:
        trials = [stack.enter_context(trial(contestant)) for contestant in participants]
        measure(trials, samples, quick=quick)
    result = samples.run({contestant.name: contestant.command for contestant in participants})
    click.echo(figures.table(result))
    if file is not None:
        file.write(figures.as_json(result))


def measure(trials: list[Trial], samples: Samples, *, quick: bool) -> None:
    """Measure all figures of all contestants."""
    busy = [trial for trial in trials if not trial.contestant.idle]
    divisor = 4 if quick else 1
    say("start and exit")
    measures.starts(trials, COUNT, 12 // divisor, samples)
    say("memory")
    for count in MEMORY_AT[: 2 if quick else 3]:
        measures.memory(trials, count, samples)
    with measures.running(trials, COUNT):
        say("idle")
        measures.idle(trials, 30 / divisor, samples)
        say("allocations")
        measures.allocations(trials, 24 // divisor, 100, samples)
        measures.preferences(busy, 12 // divisor, samples)
        say("hotplug")
        measures.hotplugs(busy, COUNT, 40 // divisor, samples)
        say("kubelet restarts")
        measures.restarts(busy, COUNT, 8 // divisor, samples)
    say("bursts")
    for _ in range(4 // divisor):
        measures.burst(busy, COUNT, samples)
    if not quick:
        say("100,000 devices")
        measures.many(busy, 100_000, 3, samples)


def say(what: str) -> None:
    """Print the progress."""
    click.echo(f"# {what}", err=True)


@bench.command()
@click.argument("before", type=click.File())
@click.argument("after", type=click.File())
@click.option(
    "--against", default=contestants.EMPTY_HANDLERS[0].name, show_default=True, help="The contestant to compare with."
)
def compare(before: IO[str], after: IO[str], against: str) -> None:
    """Compare the files of two runs."""
    runs = [figures.read(file.read()) for file in (before, after)]
    click.echo(figures.comparison(runs, against))


@bench.command(name="growth")
@click.option("--json", "file", type=click.File("w"), help="Write the rows to this file.")
@click.option("--plot", type=click.File("w"), help="Write the plot to this file, as SVG.")
@click.option("--from", "rows_file", type=click.File(), help="Read the rows from this file instead of measuring.")
def show_growth(file: IO[str] | None, plot: IO[str] | None, rows_file: IO[str] | None) -> None:
    """Measure this project's plugin with 1,000 to 130,000 devices, and with more than a message holds."""
    if rows_file is not None:
        rows = growth.read(rows_file.read())
    else:
        with trial(contestants.PLUGIN) as running:
            rows = []
            for count in growth.COUNTS:
                say(f"{count:,} devices")
                rows.append(growth.row(running, count, 15))
            listed, size, message = growth.beyond(running, growth.BEYOND)
            click.echo(f"of {growth.BEYOND:,} devices {listed:,} are listed, in {size:,} bytes; the log:\n  {message}")
    click.echo(growth.table(rows))
    if file is not None:
        file.write(growth.as_json(rows))
    if plot is not None:
        plot.write(growth.plot(rows))


@bench.command(name="fleet")
@click.option("--plugins", default=50, show_default=True)
@click.option("--devices", default=360, show_default=True)
def show_fleet(plugins: int, devices: int) -> None:
    """Run many plugins at once, and simulate the API requests of a fleet with flapping devices."""
    click.echo(fleet.together(contestants.PLUGIN, plugins, devices))
    for period in (0.005, 0.05, 0.5):
        flaps, messages = fleet.flapping(contestants.PLUGIN, period, 20)
        click.echo(f"a device that flaps every {period:g} s: {flaps} times, {messages} messages in 20 s")
    rng = random.Random(9)  # noqa: S311 - a simulation
    for flaps_per_hour, lasting in ((1, 60), (60, 5), (360, 1), (36_000, 0.05)):
        updates = fleet.status_updates(1000, flaps_per_hour, lasting, 3600, rng)
        click.echo(f"1,000 nodes, {flaps_per_hour:,} flaps an hour each, for {lasting:g} s: {updates}")


@bench.command(name="soak")
@click.option("--hotplugs", default=100_000, show_default=True)
@click.option("--restarts", default=10_000, show_default=True)
@click.option("--plot", type=click.File("w"), help="Write the plot to this file, as SVG.")
def show_soak(hotplugs: int, restarts: int, plot: IO[str] | None) -> None:
    """Hotplug devices and restart the kubelet many times, and print the resource usage."""
    with trial(contestants.PLUGIN) as running:
        notes = soak.soak(running, hotplugs, restarts, say)
    for note in (notes[0], next(note for note in notes if note.hotplugs == hotplugs), notes[-1]):
        click.echo(note)
    if plot is not None:
        plot.write(soak.plot(notes))


if __name__ == "__main__":
    bench()
