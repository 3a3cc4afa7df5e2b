"""Defines the commands and their flags, and turns errors into one line on stderr and an exit code."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from aosp_plugin import PROGRAM, __version__
from aosp_plugin.binder.driver.host import Host, HostError
from aosp_plugin.binder.provision import provisioner_socket
from aosp_plugin.binder.provision.provisioner_socket import RequestedPhones
from aosp_plugin.cli import check as check_command
from aosp_plugin.cli import echo
from aosp_plugin.cli import status as status_command
from aosp_plugin.config import convert, keys, sources
from aosp_plugin.config.keys import Config
from aosp_plugin.framework.errors import PluginError, leaves
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.worker import require_threads

LOG = logging.getLogger(__name__)

PROVISIONER_THREADS = 4
"""One for the signals, and a timer for each of a request, its answer and the end."""

# What loads grpc is imported in the function of its command: that takes 20 MB, and longer than other commands run.


class _Configurable(click.Command):
    """A command with --config and the flags of the configuration keys, which are created when it is used."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the flags."""
        if not any(option.name == "file" for option in self.params):
            file = click.Option(["--config", "file"], metavar="FILE", help="Configuration file (YAML, version: v1).")
            self.params += [file, *(_flag(name, key) for name, key in keys.KEYS.items() if key.flag)]
        return super().get_params(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags with the descriptions of their keys, which only help needs."""
        descriptions = convert.descriptions(keys.Resource) | convert.descriptions(keys.Config)
        for option in self.params:
            if isinstance(option, click.Option) and option.name in descriptions:
                option.help = f"{descriptions[option.name]} {option.help or ''}".rstrip()
        super().format_options(ctx, formatter)


def _flag(name: str, key: convert.Key) -> click.Option:
    default = keys.DEFAULTS[name]
    if isinstance(default, bool):
        return click.Option([sources.flag(name)], is_flag=True, default=None)
    shown_default = "null" if default is None else default
    # The value stays text here. ``config`` validates it, with the same errors as for a variable or a file.
    limits = f"[allowed: {key.allowed}; default: {shown_default}]"
    return click.Option([sources.flag(name)], metavar="VALUE", help=limits)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def cli(context: click.Context) -> None:
    """Kubernetes device plugin that gives Android binder devices to containers.

    Exit codes: 0 success, 1 failure, 2 invalid usage or configuration.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command(cls=_Configurable)
def serve(file: str | None, **flags: Any) -> None:
    """Run the device plugin until SIGTERM or SIGINT.

    Finds binder devices, registers them with the kubelet, and registers again when the kubelet restarts. SIGHUP reloads
    the configuration. Keys without a flag are set in the configuration file or by AOSP_PLUGIN_* variables.
    """
    # Signals that come before the thread that handles them is running wait for it. Otherwise they would end the
    # process, or, if it is the first one of its container, be ignored by the kernel.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    from aosp_plugin.daemon.serve import Daemon  # noqa: PLC0415

    def load() -> Config:
        return sources.load(flags, os.environ, file)[0]

    require_threads()
    gc.freeze()  # modules stay loaded, see also ``__main__``
    asyncio.run(Daemon(load).run())


@cli.command(cls=_Configurable)
@click.option("--remove", is_flag=True, help="Unmount instead: all phones in the directory.")
@click.option("--surplus", is_flag=True, help="With --remove: only the phones beyond the count.")
def provision(file: str | None, *, remove: bool, surplus: bool, **flags: Any) -> None:
    """Mount the phones of the configuration, and exit.

    Phones that exist are kept, so it may run again at any time. A plugin with provisioned_by: command then serves them
    without privileges: run this before it, in an init container or at boot. Accepts the flags of serve.

    Exit codes: 0 provisioned, or only a part: phones in whose place something else is, and resources that failed, are
    logged, and the plugin reports them. 1 no resource provisioned: the kernel has no binderfs, a right is missing, or
    all phones failed. 2 invalid usage or configuration.

    --remove keeps what is in use, and logs which and why. In a container it asks the kubelet, whose socket it needs.
    Exit codes: 0 all removed, and with --surplus also if some were kept. 1 it is unknown what is in use, or a right is
    missing. 3 some were kept.
    """
    if surplus and not remove:
        raise click.UsageError("--surplus requires --remove")
    config = sources.load(flags, os.environ, file)[0]
    from aosp_plugin.cli import provision  # noqa: PLC0415

    if remove:
        sys.exit(0 if provision.remove(config, surplus=surplus) or surplus else 3)
    provision.provision(config)


@cli.command(cls=_Configurable)
def provisioner(file: str | None, **flags: Any) -> None:
    """Mount phones for a plugin without privileges.

    Runs until SIGTERM or SIGINT, beside a plugin with provisioned_by: provisioner and the same configuration, and
    listens on a Unix socket in /run/aosp-plugin. Accepts the flags of serve.

    Exit codes: 0 ended by a signal, 1 another provisioner runs, 2 invalid usage or configuration.
    """
    # As in serve: process 1 of a container would otherwise not notice a signal that comes before it waits for one.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    config = sources.load(flags, os.environ, file)[0]
    logs.set_up(config.log_level, config.log_format)
    require_threads(PROVISIONER_THREADS)
    # The plugin checks the directories of the phones before its first request.
    phones = {
        each.phones.directory: RequestedPhones(each.phones.directory, Host(config.host_root), each.phones.count)
        for each in config.resources
        if each.phones is not None
    }
    provisioner_socket.serve_requests(provisioner_socket.PROVISIONER_SOCKET, phones)


@cli.command(name="config", cls=_Configurable)
def show_config(file: str | None, **flags: Any) -> None:
    """Check the configuration, and print it with its sources.

    The output is a configuration file. Accepts the flags of serve. A configuration that serve would reject is an error
    with exit code 2.
    """
    _, settings = sources.load(flags, os.environ, file)
    click.echo(sources.as_yaml(settings), nl=False)


@cli.command()
@click.option("--url", metavar="URL", help="Address of the plugin: http://HOST:PORT.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--resource", metavar="NAME", help="Show only this resource.")
@click.option("--check", is_flag=True, help="Print one line for each problem, and exit with code 3 if there is any.")
def status(url: str | None, resource: str | None, *, as_json: bool, check: bool) -> None:
    """Show devices, their pods and what is unhealthy.

    Queries the plugin on this node, at the address that AOSP_PLUGIN_STATUS_LISTEN, AOSP_PLUGIN_LISTEN and the file in
    AOSP_PLUGIN_CONFIG determine, or else at 127.0.0.1:9478. For a pod of the DaemonSet: kubectl exec POD -- aosp-plugin
    status.

    Exit codes: 0 report received, 1 plugin unreachable, 2 invalid usage, and with --check 3 if there are problems;
    notices are printed, but do not count. Without --check, problems do not change the exit code.
    """
    if check and as_json:
        raise click.UsageError("--check cannot be combined with --json")
    report = status_command.selected(status_command.fetch(url or status_command.own_url(os.environ)), resource)
    if check:
        sys.exit(3 if status_command.check(report) else 0)
    status_command.show(report, as_json=as_json)


@cli.command(cls=_Configurable)
def holders(file: str | None, **flags: Any) -> None:
    """Show which processes hold the binder devices open.

    One row for each device, and for each pod or cgroup whose processes hold it; PID is the first of them. Runs as root
    on the host, or in a privileged container with hostPID. Accepts the flags of serve.

    Exit codes: 0 all processes were read, 1 failure, 2 invalid usage or configuration, 3 some processes could not be
    read; they are named.
    """
    from aosp_plugin.cli import holders  # noqa: PLC0415

    sys.exit(0 if holders.holders(sources.load(flags, os.environ, file)[0]) else 3)


@cli.command()
@click.option("--url", metavar="URL", help="Address of the plugin: http://HOST:PORT.")
def reload(url: str | None) -> None:
    """Let the plugin read its configuration again, and print the outcome.

    Runs on the plugin's host or in its container, and finds the plugin as status does. A changed ConfigMap is in the
    file of a pod after about a minute; until then the configuration is unchanged. A changed status address requires a
    restart of the plugin instead: the command cannot follow it.

    Exit codes: 0 the configuration is served, 1 it was rejected, and the one before is still served, or there is no
    outcome, 2 invalid usage or configuration.
    """
    outcome = status_command.reload(url or status_command.own_url(os.environ))
    if outcome.error:
        raise click.ClickException(f"configuration reload rejected: {outcome.error}")
    click.echo("configuration reloaded" if outcome.changed else "configuration unchanged, devices scanned again")


@cli.command()
@click.option("--config", "file", metavar="FILE", help="Configuration file (YAML, version: v1).")
@click.option("--resource", metavar="NAME", help="The resource that the container requested.")
def check(file: str | None, resource: str | None) -> None:
    """Check that this container has its binder devices.

    Runs in a container that requested a resource of the plugin, with the plugin's configuration: the pod of helm test
    does. The devices in BINDER_VISIBLE_DEVICES must exist and open, and with verify: binder or probe the binder driver
    must respond.

    Exit codes: 0 all checks passed, 1 a check failed, 2 invalid usage or configuration.
    """
    check_command.check(sources.load({}, os.environ, file)[0], resource, os.environ)


@cli.command()
@click.option(
    "--phones", type=click.IntRange(3, 10_000), default=120, show_default=True, help="Number of stand-in phones."
)
@click.option("--stay", is_flag=True, help="Keep a host of phones running: pods come and go, keys cause faults.")
@click.option("--seed", type=int, default=0, show_default=True, help="Determines what is random with --stay.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the page with --stay.  [default: any]")
def demo(phones: int, *, stay: bool, seed: int, port: int) -> None:
    """Show the plugin at work without Kubernetes, binder or root.

    Without --stay, the demo shows step by step what the plugin does. With --stay, it runs a host until q, Ctrl-C or
    SIGTERM, and prints the address of the plugin's page.
    """
    try:
        from aosp_plugin.demo import stay as permanent  # noqa: PLC0415 - requires another distribution
        from aosp_plugin.demo import steps  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "kubelet_standin":
            raise
        message = "the demo is not part of the image; elsewhere it requires the stand-in kubelet, kubelet-standin"
        raise click.ClickException(message) from error

    sys.exit(asyncio.run(permanent.stay(phones, seed, port) if stay else steps.demo(phones)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 success, 1 failure, 2 invalid usage or configuration."""
    try:
        cli.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except ExceptionGroup as group:  # of the tasks of serve; the same error may have ended several
        return max([_report(error) for error in {str(error): error for error in leaves(group)}.values()])
    except (PluginError, HostError, OSError) as error:
        return _report(error)
    except click.Abort:  # Ctrl-C
        return _fail("interrupted", 130)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def _report(error: BaseException) -> int:
    """Report an error, a bug with its traceback, and return the exit code."""
    if isinstance(error, OSError):
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    if isinstance(error, (PluginError, HostError)):
        return _fail(str(error), getattr(error, "exit_code", 1))
    LOG.error("task failed, exiting", exc_info=error)
    return 1


def _fail(message: str, exit_code: int) -> int:
    echo(f"{PROGRAM}: {' '.join(message.split())}", err=True)
    return exit_code
