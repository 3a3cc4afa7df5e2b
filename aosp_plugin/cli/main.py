"""The command line: translates flags, calls what does the work, and turns errors into one line and an exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from aosp_plugin import __version__, config
from aosp_plugin.errors import HostError, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aosp_plugin.config import Config


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aosp-plugin")
def cli() -> None:
    """Hand Android binder nodes to containers: a Kubernetes device plugin."""


def configurable(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --config and a flag for each key of the configuration that has one."""
    for name, key in reversed(list(config.KEYS.items())):
        if key.flag:
            command = _flag(name, key)(command)
    return click.option("--config", "file", metavar="FILE", help="Configuration file (YAML, version: v1).")(command)


def _flag(name: str, key: config.Key) -> Callable[[Callable[..., None]], Callable[..., None]]:
    default = config.DEFAULTS[name]
    if isinstance(default, bool):
        return click.option(config.flag(name), is_flag=True, default=None, help=key.help)
    # Values stay text here: config checks them, with the same words for a flag, a variable and a file.
    return click.option(config.flag(name), metavar="VALUE", help=f"{key.help} [{key.allowed}; default: {default}]")


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


@cli.command()
@configurable
def serve(file: str | None, **flags: Any) -> None:
    """Run the plugin: find the nodes, register with the kubelet, stay registered."""
    from aosp_plugin.daemon.serve import serve as run  # noqa: PLC0415 - grpc is loaded where it is needed

    def load() -> Config:
        return config.load(_given(flags), os.environ, file)[0]

    asyncio.run(run(load))


@cli.command(name="config")
@configurable
def show_config(file: str | None, **flags: Any) -> None:
    """Print the effective configuration, and where each value comes from."""
    _, settings = config.load(_given(flags), os.environ, file)
    click.echo(config.as_yaml(settings), nl=False)


@cli.command()
@click.option("--url", metavar="URL", help="Where the plugin listens: http://HOST:PORT.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C.")
@click.option("--resource", metavar="NAME", help="Tell of this resource only.")
@click.option("--all", "everything", is_flag=True, help="Print every row of a table, and not just the first ones.")
def status(url: str | None, *, as_json: bool, watch: bool, resource: str | None, everything: bool) -> None:
    """Show what is advertised, who has it, what is ill and what leaks.

    Asks the plugin that runs on this node: where AOSP_PLUGIN_LISTEN has it listen, else at 127.0.0.1:9478. In a pod of
    the DaemonSet: kubectl exec POD -- aosp-plugin status.

    Exit codes: 0 the plugin has told, 1 it can't be asked, 2 bad usage. Devices that are unhealthy or leak don't change
    the exit code.
    """
    from aosp_plugin.cli import status  # noqa: PLC0415 - only here

    look = status.watch if watch else status.show
    try:
        look(url or status.own_url(os.environ), resource, everything=everything, as_json=as_json)
    except KeyboardInterrupt:
        click.echo()


@cli.command()
@click.option(
    "--nodes",
    type=click.IntRange(8, 100_000),
    default=1000,
    show_default=True,
    help="Stand-in nodes to make; the pods take seven.",
)
@click.option("--keep", is_flag=True, help="Leave the directory with nodes, sockets, checkpoint and log in place.")
def demo(nodes: int, keep: bool) -> None:  # noqa: FBT001 - click passes it by name
    """Show the whole plugin on this machine: no Kubernetes, no binder, no root."""
    from aosp_plugin.cli.demo import demo as run  # noqa: PLC0415 - the stand-in kubelet is not for serve

    sys.exit(asyncio.run(run(nodes=nodes, keep=keep)))


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def nodes(arguments: Sequence[str]) -> None:
    """Make, list and remove nodes for tests: nodes create|list|delete."""
    from aosp_plugin.cli.nodes import main as run  # noqa: PLC0415 - only here

    sys.exit(run(list(arguments), prog="aosp-plugin nodes"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed, 2 bad usage or configuration."""
    try:
        cli.main(args=arguments, prog_name="aosp-plugin", standalone_mode=False)
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except (HostError, PluginError) as error:
        _complain(str(error))
        return getattr(error, "exit_code", 1)
    except click.Abort:
        return 130
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 1
    return 0


def _complain(text: str) -> None:
    click.echo(f"aosp-plugin: {' '.join(text.split())}", err=True)
