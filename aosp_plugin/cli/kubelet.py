"""``aosp-plugin kubelet``: the stand-in kubelet as a command, for device plugins in any language."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterator


_NOT_IN_THE_IMAGE: Final = ("kubelet_standin", "aosp_plugin.cli.demo")
"""``.dockerignore`` leaves them out."""


@contextlib.contextmanager
def stand_in_kubelet() -> Iterator[None]:
    """Turn the import error of a missing stand-in kubelet or demo into one line: the image does not contain them."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _NOT_IN_THE_IMAGE:
            raise
        message = "the stand-in kubelet is not part of the image; run pip install . in a checkout"
        raise click.ClickException(message) from error


@click.command()
@click.argument("directory", metavar="DIR")
@click.option(
    "--behaviour",
    type=click.Choice(["old", "early", "sweeping", "buggy", "new"]),
    default="new",
    show_default=True,
    help="The kubelet version to behave like: 1.20, 1.25, 1.26 to 1.32, 1.33 to 1.36, or 1.37.",
)
@click.option("--pod-resources", metavar="PATH", default="", help="Serve the podresources API at this socket too.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON objects.")
def kubelet(directory: str, behaviour: str, pod_resources: str, *, as_json: bool) -> None:
    """Run a stand-in kubelet, to test device plugins.

    A device plugin in any language registers at DIR/kubelet.sock. DIR is created if it does not exist. Each event is
    printed as a line. The kubelet runs until quit, Ctrl-C or SIGTERM.

    Commands are read from standard input, also from scripts:

    \b
    admit POD RESOURCE=COUNT ...   Admit a pod with one container (Allocate).
    run POD                        Start its container (PreStartContainer).
    remove POD                     End a pod; its devices become free.
    restart [lose-checkpoint]      Restart the kubelet, with or without its memory.
    stop, start                    Stop the kubelet as if it was killed; start it.
    devices RESOURCE               Show the health of each device.
    wait RESOURCE COUNT [SECONDS]  Wait until so many devices are allocatable.
    break FAULT [VALUE], repair    Inject a fault; remove all faults.
    drop [RESOURCE]                Cancel the ListAndWatch streams.
    quit                           Stop the kubelet and exit.
    """  # noqa: D301 - click needs the character
    with stand_in_kubelet():
        from kubelet_standin import Behaviour, console  # noqa: PLC0415 - not part of the image

    run = console.run(directory, Behaviour[behaviour.upper()], pod_resources=pod_resources, as_json=as_json)
    asyncio.run(run)
