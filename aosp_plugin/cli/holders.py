"""``aosp-plugin holders``: prints which processes hold the binder devices of the configuration open.

A child process reads /proc. A file system of a tenant, or the memory of a process, can delay a read for ever, and even
SIGKILL does not end all of these waits. If the child needs more than ``PATIENCE`` for one process, this process reports
that one, leaves the child, and continues with the next process in a new child.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from multiprocessing.connection import Connection
from typing import NoReturn

import click

from aosp_plugin.binder.devices.holders import Holder, Search, Unread
from aosp_plugin.binder.devices.sets import natural_key
from aosp_plugin.binder.driver.host import HostError, sees_kernel_threads
from aosp_plugin.cli import aligned
from aosp_plugin.config.keys import Config
from aosp_plugin.daemon.assembly import create_backends

PATIENCE = 5.0
"""Seconds for one process. A descriptor takes microseconds, and a process has at most a million."""


def holders(config: Config) -> bool:
    """Print the processes that hold binder devices open; return whether all could be read.

    Raises HostError, PluginError and OSError.
    """
    devices = []
    for backend in create_backends(config).values():
        devices += [device for members in backend.scan().members.values() for device in members]
    results = list(search(Search(devices)))
    found = [each for each in results if isinstance(each, Holder)]
    unread = [each for each in results if isinstance(each, Unread)]
    for line in aligned([("DEVICE", "PLACE", "USER", "PROCESSES", "PID", "COMMAND"), *_rows(found)]):
        click.echo(line)
    if not sees_kernel_threads():
        click.echo("not read: the processes of the host, which are invisible here, as without hostPID", err=True)
    for cause, group in groupby(sorted(unread, key=lambda each: each.cause), key=lambda each: each.cause):
        first, *others = group
        more = f" and {len(others):,} more" if others else ""
        click.echo(f"not read: process {first.pid}{more}: {cause}", err=True)
    return sees_kernel_threads() and not unread


def _rows(found: Sequence[Holder]) -> Sequence[tuple[str, ...]]:
    """Return a row for each place that holds a device, with its number of processes and the first of them."""

    def place(holder: Holder) -> tuple[object, ...]:
        return natural_key(holder.binder_device), holder.place, holder.user

    rows = []
    for _, group in groupby(sorted(found, key=lambda holder: (place(holder), holder.pid)), key=place):
        first, *others = group
        number = f"{len(others) + 1:,}"
        rows.append((first.binder_device, first.place, str(first.user), number, str(first.pid), first.command))
    return rows


def search(reader: Search, patience: float = PATIENCE) -> Iterator[Holder | Unread]:
    """Yield what ``reader`` finds, and each process that takes longer than ``patience`` seconds.

    Raises HostError and OSError.
    """
    pids = reader.pids()
    while pids:
        results, output = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if not child:
            _read(reader, pids, output)
        output.close()
        with results:
            while pids and results.poll(patience):
                try:
                    yield from results.recv()
                except EOFError:
                    raise HostError("the search for processes has failed, see above") from None
                del pids[0]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG)  # it may never end
        if pids:
            yield Unread(pids.pop(0), f"no answer within {patience:g} s")


def _read(reader: Search, pids: Sequence[int], output: Connection) -> NoReturn:
    """Read processes, in the child: send the results of each."""
    try:
        for pid in pids:
            output.send(reader.read(pid))
    except OSError as error:
        click.echo(f"aosp-plugin: {error}", err=True)
    except Exception:  # noqa: BLE001 - a bug: the child must not return into the command
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)
