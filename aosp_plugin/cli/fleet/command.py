"""The command ``kubectl-phones``, which kubectl runs for ``kubectl phones``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

import click

from aosp_plugin import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from aosp_plugin.cli.fleet.report import Fleet

PROBLEMS, FAILED = 1, 2
"""Exit codes; 0 is success."""

_Names = tuple[str, ...]


def _not_empty(_context: click.Context, option: click.Parameter, names: _Names) -> _Names:
    """Return the names. An empty one, such as of an unset variable of a shell, would select nothing or everything."""
    if "" in names:
        raise click.UsageError(f"{option.opts[0]}: a name is required")
    return names


# Everything that requires time to load is imported while kubectl starts, and not for --help.


@click.command(
    name="kubectl-phones", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--unhealthy", is_flag=True, help="Show only nodes and phones with a problem.")
@click.option(
    "--node",
    "nodes",
    metavar="NODE",
    multiple=True,
    callback=_not_empty,
    help="Show only this node; may be repeated.",
)
@click.option("-n", "--namespace", metavar="NAME", default="", help="Show only pods of this namespace.")
@click.option("-l", "--selector", metavar="LABELS", default="", help="Show only pods with these labels, as in kubectl.")
@click.option(
    "--resource",
    "resources",
    metavar="NAME",
    multiple=True,
    callback=_not_empty,
    help="Show only this resource; may be repeated. [default: what plugins report, and all of aosp.io]",
)
@click.option(
    "-o", "--output", type=click.Choice(["wide", "json"]), help="wide: more columns; json: the document, see docs."
)
@click.option("--check", is_flag=True, help="End with exit code 1 if there is a problem.")
@click.option("--timings", is_flag=True, help="Print to standard error where the time goes.")
@click.option("--context", "kube_context", metavar="NAME", help="Context of the kubeconfig.")
@click.option("--kubeconfig", metavar="FILE", help="Path of the kubeconfig.")
@click.version_option(__version__, prog_name="kubectl-phones")
def cli(
    nodes: tuple[str, ...],
    namespace: str,
    selector: str,
    resources: tuple[str, ...],
    output: str | None,
    kube_context: str | None,
    kubeconfig: str | None,
    *,
    unhealthy: bool,
    check: bool,
    timings: bool,
) -> None:
    """Show the phones of a cluster, and the nodes whose plugin is absent, not ready or disagrees with the kubelet.

    Problems come first. Asks the API server only, through kubectl proxy. What cannot be read, for example because a
    right is missing, is reported on standard error, and the rest is shown.

    Exit codes: 0 shown, and with --check all is well; 1 with --check: there are problems; 2 invalid usage, or the API
    server cannot be read; with --check also if nodes or pods cannot be read.
    """
    options = [f"--{name}={value}" for name, value in (("context", kube_context), ("kubeconfig", kubeconfig)) if value]
    from aosp_plugin.cli.fleet import run  # noqa: PLC0415 - as above

    selected = {
        "resources": resources,
        "nodes": nodes,
        "namespace": namespace,
        "selector": selector,
        "unhealthy": unhealthy,
    }
    found = run.run(options, selected, timings=timings)
    for text in found.missing:
        click.echo(f"kubectl-phones: {text}", err=True)
    try:
        run.show(found, output)
    except BrokenPipeError:  # the reader has ended; click would exit with 1, which means problems
        sys.exit(128 + signal.SIGPIPE)
    if check:
        sys.exit(_exit_code(found))


def script() -> NoReturn:
    """Run the command line, and end the process without freeing a hundred thousand objects, which requires time."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader has ended; closed
            stream.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)  # so that kubectl is ended
    from aosp_plugin.framework.errors import PluginError  # noqa: PLC0415 - as above

    try:
        cli.main(args=arguments, prog_name="kubectl-phones", standalone_mode=False)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except PluginError as error:
        return _fail(str(error), FAILED)
    except (click.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except Exception:  # noqa: BLE001 - a bug; exit code 1 would say that there are problems
        traceback.print_exc()
        return FAILED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILED
    return 0


def _exit_code(found: Fleet) -> int:
    from aosp_plugin.cli.fleet.fleet import has_problems  # noqa: PLC0415 - as above

    if has_problems(found):
        return PROBLEMS
    return 0 if found.complete else FAILED


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _fail(message: str, exit_code: int) -> int:
    click.echo(f"kubectl-phones: {' '.join(message.split())}", err=True)
    return exit_code
