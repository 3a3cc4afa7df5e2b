"""``python -m tests.bench``: measure this project's plugin and others in one run."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import IO

import click

from tests.bench import caller, changes, contestants, fleet, growth, machine, measures, profile, report, soak
from tests.bench.run import FORMAT, Repetition, Run, as_json, read
from tests.bench.samples import Samples
from tests.bench.trial import Trial, trial

COUNT, MANY = 10_000, 100_000
DOCUMENTS = {Path("docs/benchmark.md"): report.fill_benchmark, Path("README.md"): report.fill_readme}


@click.group()
def bench() -> None:
    """Measure device plugins, each with a kubelet and devices of its own, in turns in one run."""


@bench.command()
@click.option("--before", metavar="DIRECTORY", help="Also measure this plugin from another checkout.")
@click.option("--plugin", "further", multiple=True, metavar="NAME=COMMAND", help="Also measure another plugin.")
@click.option("--repeat", type=click.IntRange(1), help="Repetitions of all measures.  [default: 3; 1 with --quick]")
@click.option("--quick", is_flag=True, help="Run few rounds, without 100,000 devices.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the run to this file, for render.")
def run(before: str | None, further: tuple[str, ...], repeat: int | None, quick: bool, file: Path | None) -> None:  # noqa: FBT001 - click passes them by name
    """Measure all figures, and print ratios, medians and spreads."""
    caller.program()
    participants = [contestants.PLUGIN]
    try:
        participants += [contestants.before(before)] if before else []
        participants += map(contestants.parse, further)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    participants += contestants.EMPTY_HANDLERS
    commands = {contestant.name: contestant.command for contestant in participants}
    result = Run(FORMAT, machine.properties(), commands, [], quick=quick)
    for number in range(repeat or (1 if quick else 3)):
        rotated = participants[number % len(participants) :] + participants[: number % len(participants)]
        result.repetitions.append(repetition(number + 1, rotated, quick=quick))
        if file is not None:
            file.write_text(as_json(result), encoding="utf-8")
    click.echo(report.report(result))


def repetition(number: int, participants: list[contestants.Contestant], *, quick: bool) -> Repetition:
    """Measure all figures of all contestants once, and print the load."""
    samples = Samples()
    with machine.load() as load:
        say(f"repetition {number}: load average {' '.join(f'{average:.2f}' for average in load.start)}")
        for warning in machine.warnings([load]):
            say(f"WARNING: the machine is not idle: {warning}")
        with contextlib.ExitStack() as stack:
            trials = [stack.enter_context(trial(contestant)) for contestant in participants]
            measure(trials, samples, quick=quick)
    say(f"repetition {number}: {load}")
    for warning in machine.warnings([load]):
        say(f"WARNING: the machine was not idle: {warning}")
    return Repetition(load, samples.summaries(), samples.failures())


def measure(trials: list[Trial], samples: Samples, *, quick: bool) -> None:
    """Measure all figures of all contestants."""
    busy = [trial for trial in trials if not trial.contestant.idle]
    divisor = 4 if quick else 1
    say("start and exit")
    measures.starts(trials, COUNT, 12 // divisor, samples)
    say("memory")
    for count in (COUNT,) if quick else (1_000, COUNT):
        measures.memory(trials, count, samples)
    with measures.running(trials, COUNT):
        say("idle")
        measures.idle(trials, 30 / divisor, samples)
        say("allocations")
        measures.allocations(trials, 24 // divisor, 100, samples)
        measures.preferences(busy, 4 // divisor, samples)
        say("hotplug")
        measures.hotplugs(busy, COUNT, 20 // divisor, samples)
        changes.consecutive(busy, COUNT, 40 // divisor, samples)
        changes.beside_flapping(busy, COUNT, 0.05, 10, 20 // divisor, samples)
        say("kubelet restarts")
        measures.restarts(busy, COUNT, 8 // divisor, samples)
    say("bursts")
    for _ in range(1 if quick else 2):
        measures.burst(busy, COUNT, samples)
    if not quick:
        say(f"{MANY:,} devices")
        measures.many(trials, MANY, 3, samples)
        measures.growth(trials, COUNT, MANY, samples)


def say(what: str) -> None:
    """Print the progress."""
    click.echo(f"# {what}", err=True)


@bench.command()
@click.argument("file", type=click.File())
@click.option("--write", is_flag=True, help="Write the tables into docs/benchmark.md and README.md.")
def render(file: IO[str], write: bool) -> None:  # noqa: FBT001 - click passes it by name
    """Print the tables of a run's file, or write them into the documents."""
    result = read(file.read())
    if not write:
        click.echo(report.report(result))
        return
    for path, fill in DOCUMENTS.items():
        path.write_text(fill(path.read_text(encoding="utf-8"), result), encoding="utf-8")


@bench.command(name="profile")
@click.option("--devices", default=COUNT, show_default=True)
@click.option(
    "--sampler", default="", metavar="COMMAND", help="Run this while Allocate is called; {pid} is the plugin."
)
def show_profile(devices: int, sampler: str) -> None:
    """Print which modules the start and the memory of this project's plugin go to, and which threads serve Allocate."""
    click.echo(profile.profile(devices, sampler))


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
