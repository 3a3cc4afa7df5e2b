"""From the options to the output: starts kubectl, reads the cluster, and prints the rows."""

from __future__ import annotations

import gc
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from aosp_plugin.cli.fleet.kubectl_proxy import kubectl_proxy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aosp_plugin.cli.fleet.report import Fleet

_KEPT: list[object] = []
"""What would be freed only because a function returns. The process ends soon, and freeing would require 0.2 s."""

_SWITCH = 0.002
"""Seconds. The threads that ask plugins wait so long for the one that decodes pods; Python's default is 5 ms."""


def run(options: Sequence[str], selected: dict[str, Any], *, timings: bool) -> Fleet:
    """Return the rows of a cluster that kubectl reaches with ``options``; ``selected`` are fields of Selection.

    ``timings``: print to standard error where the time goes. Raises PluginError.
    """
    gc.disable()  # a hundred thousand objects are made, and the process ends soon
    sys.setswitchinterval(_SWITCH)
    begin = time.monotonic()
    with kubectl_proxy(options) as proxy:
        # While kubectl starts:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

        from aosp_plugin.cli.fleet.api import Api  # noqa: PLC0415
        from aosp_plugin.cli.fleet.fleet import Selection, fleet  # noqa: PLC0415
        from aosp_plugin.cli.fleet.gather import THREADS, Gatherer, Timing  # noqa: PLC0415

        imported = time.monotonic()
        selection = Selection(**selected)
        gatherer = Gatherer(Api(proxy.socket()), selection)
        started = time.monotonic()
        executor = ThreadPoolExecutor(THREADS)
        try:
            cluster = gatherer.gather(executor)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)  # the end of kubectl ends what still waits
        read = time.monotonic()
    ended = time.monotonic()
    found = fleet(cluster, selection)
    _KEPT.extend((cluster, found))
    if timings:
        spans = [Timing("import", begin, imported), Timing("kubectl proxy starts", begin, started), *gatherer.timings]
        spans += [Timing("kubectl proxy ends", read, ended), Timing("rows", ended, time.monotonic())]
        for span in spans:
            click.echo(f"{span.begin - begin:6.2f} s  {span.end - span.begin:6.2f} s  {span.what}", err=True)
    return found


def show(found: Fleet, output: str | None) -> None:
    """Print the document: as JSON, or as tables, which fit a terminal's width."""
    if output == "json":
        import msgspec  # noqa: PLC0415 - as above

        click.echo(msgspec.json.encode(found))
        return
    from aosp_plugin.cli.fleet import text  # noqa: PLC0415 - as above

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    lines = text.lines(found, wide=output == "wide", width=width)
    if terminal:
        click.echo("\n".join(click.style(line.text, bold=line.bold, fg=line.color) for line in lines))
    else:
        click.echo("\n".join(line.text for line in lines))
