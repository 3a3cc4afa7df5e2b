"""``aosp-plugin kubelet``: the stand-in kubelet as a command, for device plugins in any language."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def stand_in_kubelet() -> Iterator[None]:
    """Turn the import error of a missing ``aosp_plugin.testing`` into one line: the image does not contain it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "aosp_plugin.testing":
            raise
        message = "the stand-in kubelet is not part of the image; install it with: pip install aosp-device-plugin"
        raise click.ClickException(message) from error


@click.command()
@click.argument("directory", metavar="DIR")
@click.option(
    "--behaviour",
    type=click.Choice(["old", "buggy", "new"]),
    default="new",
    show_default=True,
    help="The kubelet version to behave like: 1.20, 1.25 to 1.36 (with their disconnect bug), or 1.37.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON objects.")
@click.option("--seed", default=0, show_default=True, help="Seed for everything that a kubelet does at random.")
@click.option(
    "--grace-period",
    metavar="SECONDS",
    default=300.0,
    show_default=True,
    help="Time after which the resource of an absent plugin is forgotten.",
)
@click.option("--pod-resources", metavar="SOCKET", help="Serve the podresources API on this unix socket.")
def kubelet(
    directory: str, behaviour: str, seed: int, grace_period: float, pod_resources: str | None, *, as_json: bool
) -> None:
    """Run a stand-in kubelet, to test device plugins.

    A device plugin in any language registers at DIR/kubelet.sock. Each event is printed as a line. Commands are read
    from standard input, also from scripts: help lists them. The kubelet runs until quit, Ctrl-C or SIGTERM.
    """
    with stand_in_kubelet():
        from aosp_plugin.testing import Behaviour, console  # noqa: PLC0415 - not part of the image

    asyncio.run(
        console.run(
            directory,
            behaviour=Behaviour[behaviour.upper()],
            seed=seed,
            grace_period=grace_period,
            pod_resources=pod_resources,
            as_json=as_json,
        )
    )
