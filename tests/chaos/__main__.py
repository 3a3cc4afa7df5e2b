"""``python -m tests.chaos``: the package's docstring describes it."""

from __future__ import annotations

import asyncio
import collections
import faulthandler
import os
import sys

import click

from tests.chaos import faults, place, setups
from tests.chaos.invariants import INVARIANTS
from tests.chaos.registry import BOUND, FAULTS
from tests.chaos.run import FailedError, run


@click.command()
@click.option("--seed", default=1, show_default=True, help="The first seed.")
@click.option(
    "--seeds", type=int, help="The number of consecutive seeds.  [default: 1 with --seed, else one per setup]"
)
@click.option("--steps", default=12, show_default=True, help="The number of steps of each seed.")
@click.option("--only", default="", help="Select only faults whose names contain one of these texts: a,b,c.")
@click.option("--list", "listing", is_flag=True, help="Print the faults and the checks.")
@click.pass_context
def chaos(
    context: click.Context,
    *,
    seed: int,
    seeds: int | None,
    steps: int,
    only: str,
    listing: bool,
) -> None:
    """Run the plugin under injected faults."""
    if listing:
        show()
        return
    explicit = context.get_parameter_source("seed") is not click.core.ParameterSource.DEFAULT
    seeds = seeds or (1 if explicit else len(setups.SETUPS))
    namespace = place.enter(sys.argv[1:])
    if not namespace:
        missing = sorted(fault.name for fault in FAULTS.values() if fault.namespaces)
        click.echo(f"namespaces are not available; skipped faults: {', '.join(missing)}")
    tally: collections.Counter[str] = collections.Counter()
    failed = 0
    for number in range(seed, seed + seeds):
        try:
            asyncio.run(run(number, steps, tally, only=only.split(","), namespace=namespace))
        except FailedError as error:
            failed += 1
            click.echo(error)
    for name, count in tally.most_common():
        click.echo(f"{count:6} {name}")
    if failed:
        raise SystemExit(f"{failed} seeds failed")


def show() -> None:
    """Print the faults and the invariants."""
    for fault in sorted(FAULTS.values(), key=lambda fault: (fault.place, fault.name)):
        click.echo(f"{fault.place:12} {fault.name:42} {fault.sentence}")
    click.echo(f"\ninvariants, which must hold within {BOUND:g} s after each step:")
    for check in INVARIANTS:
        click.echo(f"  {check.__name__.replace('_', ' '):42} {(check.__doc__ or '').strip()}")


if __name__ == "__main__":
    assert faults.__all__
    faulthandler.enable()
    # gRPC logs each connection that a dying kubelet closes.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    chaos()
