"""The command line: ``main`` defines the commands. The lines that they print cannot control the terminal.

A report comes from whoever listens at the plugin's address: any user of the host, while no plugin runs. Others choose
the names of pods and processes in a plugin's own report.
"""

from collections.abc import Iterator, Sequence

import click


def echo(text: str, *, err: bool = False) -> None:
    """Print one line to standard output or error."""
    click.echo("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text), err=err)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
