"""``aosp-plugin nodes``: create, list and delete binder devices on a test host."""

from collections.abc import Callable

import click
import msgspec

from aosp_plugin.binder.driver.binderfs import ALL_MINORS
from aosp_plugin.binder.provision import bulk

_NUMBER = click.IntRange(1, ALL_MINORS)


class _InterruptedError(click.ClickException):
    exit_code = 130


@click.group(invoke_without_command=True)
@click.pass_context
def nodes(context: click.Context) -> None:
    """Create, list and delete binder devices on a test host."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _pool_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of a ``DevicePool``."""
    flags = {
        "--prefix": (bulk.PREFIX, "Name of a device, before its number."),
        "--device-dir": (bulk.DEVICE_DIR, "Device directory."),
    }
    for flag, (default, text) in flags.items():
        command = click.option(flag, default=default, show_default=True, help=text)(command)
    return command


@nodes.command()
@click.option("--count", type=_NUMBER, required=True, help="Number of devices.")
@click.option(
    "--start", type=click.IntRange(0, ALL_MINORS), default=0, show_default=True, help="Number of the first device."
)
@click.option("--stand-ins", is_flag=True, help="Create test devices that are not binder: null devices as root.")
@click.option("--max", "max_devices", type=_NUMBER, help="Mount option max= of the binderfs.")
@_pool_options
def create(*, count: int, start: int, stand_ins: bool, max_devices: int | None, **pool: str) -> None:
    """Create the devices that are missing.

    Mounts a binderfs of its own, creates the binder devices in it, and a link to each in the device directory. Without
    root, use --stand-ins with a --device-dir of your own: the devices are empty files. After an interruption, run the
    same command again: it continues.
    """
    try:
        summary = bulk.DevicePool(**pool).create(count, start, max_devices=max_devices, stand_ins=stand_ins)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except KeyboardInterrupt:
        raise _InterruptedError("interrupted: run the same command again to continue") from None
    click.echo(summary, nl=False)


@nodes.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print the devices as JSON.")
@_pool_options
def list_devices(*, as_json: bool, **pool: str) -> None:
    """List the created devices: name, kind and file."""
    devices = bulk.DevicePool(**pool).list()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode([device._asdict() for device in devices])))
    for device in [] if as_json else devices:
        click.echo(f"{device.name}\t{device.kind}\t{device.target or device.path}")


@nodes.command()
@_pool_options
def delete(**pool: str) -> None:
    """Delete the created devices, and unmount their binderfs."""
    click.echo(bulk.DevicePool(**pool).delete(), nl=False)
