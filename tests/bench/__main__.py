"""``python -m tests.bench``: measure this project's plugin and others in one run."""

import contextlib
import os

import click

from tests.bench import contestants, measures, report
from tests.bench.trial import trial

COUNTS = (1_200, 10_000)


@click.group()
def bench() -> None:
    """Measure device plugins, each with a kubelet and devices of its own, in turns in one run."""


@bench.command()
@click.option("--plugin", "further", multiple=True, metavar="NAME=COMMAND", help="Also measure another plugin.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Repetitions of all measures.")
@click.option("--quick", is_flag=True, help="Run a quarter of the rounds.")
def run(further: tuple[str, ...], repeat: int, quick: bool) -> None:  # noqa: FBT001 - click passes it by name
    """Print the figures with 1,200 and with 10,000 devices as tables, beside their targets."""
    participants = [contestants.PLUGIN]
    try:
        participants += map(contestants.parse, further)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    participants += contestants.EMPTY_HANDLERS
    for count in COUNTS:
        repetitions = []
        for number in range(repeat):
            rotated = participants[number % len(participants) :] + participants[: number % len(participants)]
            load = os.getloadavg()[0]
            with contextlib.ExitStack() as stack:
                trials = [stack.enter_context(trial(contestant)) for contestant in rotated]
                repetitions.append(measures.measure(trials, count, 4 if quick else 1))
            click.echo(f"{count:,} devices, repetition {number + 1}: load average {load:.2f} before", err=True)
        click.echo(report.table([participant.name for participant in participants], count, repetitions) + "\n")


if __name__ == "__main__":
    bench()
