"""Lines of the commands, whose content cannot control the terminal.

A report comes from whoever listens at the plugin's address: any user of the host, while no plugin runs. Others choose
the names of pods and processes in a plugin's own report.
"""

import click


def echo(text: str, *, err: bool = False) -> None:
    """Print one line to standard output or error."""
    click.echo("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text), err=err)
