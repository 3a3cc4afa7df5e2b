"""``python -m tests.chaos``: see the package."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

import click
from rich.console import Console

from tests.chaos import faults, place, setups
from tests.chaos.invariants import BOUND, INVARIANTS
from tests.chaos.registry import FAULTS
from tests.chaos.run import FailedError, run, without_namespaces
from tests.chaos.tally import Tally


@click.command()
@click.option("--seed", default=1, show_default=True, help="The first seed.")
@click.option("--seeds", type=int, help="How many seeds in a row.  [default: 1 with --seed, else one of each setup]")
@click.option("--steps", default=12, show_default=True, help="Steps of each seed.")
@click.option("--faults", "enough", type=int, help="As many seeds as this many faults take.")
@click.option("--list", "listing", is_flag=True, help="Print what can happen, and what is checked.")
@click.pass_context
def chaos(
    context: click.Context, *, seed: int, seeds: int | None, steps: int, enough: int | None, listing: bool
) -> None:
    """Run the plugin among faults."""
    if listing:
        show()
        return
    given = context.get_parameter_source("seed") is not click.core.ParameterSource.DEFAULT
    count = seeds or (1 if given else len(setups.SETUPS))
    namespace = place.enter(sys.argv[1:])
    if not namespace:
        click.echo(f"no namespaces here; left out: {', '.join(without_namespaces())}")
    tally, failed = Tally(), 0
    every = itertools.count(seed) if enough else range(seed, seed + count)
    for one in every:
        try:
            asyncio.run(run(one, steps, tally, namespace=namespace))
        except FailedError as error:
            failed += 1
            click.echo(error)
        if enough and tally.faults >= enough:
            break
    Console(width=None if sys.stdout.isatty() else 120).print(tally.table())
    for line in tally.lines():
        click.echo(line)
    if failed:
        raise SystemExit(f"{failed} seeds failed")


def show() -> None:
    """Print the faults and the invariants."""
    for fault in sorted(FAULTS.values(), key=lambda one: (one.place, one.name)):
        click.echo(f"{fault.place:12} {fault.name:42} {fault.sentence}")
    click.echo(f"\nwithin {BOUND:g} s after each step, measured as time:")
    for check in INVARIANTS:
        click.echo(f"  {check.__name__.replace('_', ' '):42} {(check.__doc__ or '').strip()}")


if __name__ == "__main__":
    assert faults.__all__
    # A shell that started this in the background has made it ignore Ctrl-C; and gRPC is loud where a kubelet dies.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    chaos()
