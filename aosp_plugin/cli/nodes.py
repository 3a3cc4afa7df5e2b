"""``aosp-plugin nodes``, and ``hack/binder_nodes.py``: create, list and delete nodes for tests.

The arguments, the progress bar and the exit codes around ``binder.provision``. Standard library alone, so
that it runs from a bare checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from typing import TYPE_CHECKING, NoReturn, TextIO

from aosp_plugin.binder.discovery.names import LONGEST_NAME, name_problem
from aosp_plugin.binder.driver import binderfs as kernel
from aosp_plugin.binder.errors import HostError
from aosp_plugin.binder.provision import bulk
from aosp_plugin.binder.provision.makers import ProvisionMethod, detect_method

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aosp_plugin.binder.provision.makers import Binderfs

DONE, FAILED, INTERRUPTED = 0, 1, 130
"""Exit codes; 2 is argparse's, for bad usage."""

_BAR_WIDTH = 40

_WAYS = {
    ProvisionMethod.BINDERFS: "binderfs at {binderfs}",
    ProvisionMethod.MKNOD: "stand-ins: null devices, not binder",
    ProvisionMethod.FILE: "plain files, not devices",
}
"""What a summary says of the nodes."""

_WHY = {ProvisionMethod.MKNOD: ", since this kernel has no binderfs", ProvisionMethod.FILE: ", since this is not root"}
"""What it says as well where the way was chosen, not asked for."""


def main(
    argv: Sequence[str] | None = None,
    prog: str = "aosp-plugin nodes",
    *,
    binderfs: Binderfs = kernel,
) -> int:
    """Run the command with ``argv`` (None: the process's own) and return its exit code. Raises nothing."""
    bar = Bar(sys.stderr)
    try:
        arguments = _parse(argv, prog)
        run: Callable[[argparse.Namespace, Binderfs, Bar], str] = arguments.run
        text = run(arguments, binderfs, bar)
        bar.clear()
        _write(sys.stdout, text)
    except SystemExit as stop:  # argparse has said what there is to say
        return int(stop.code or DONE)
    except KeyboardInterrupt:
        bar.clear()
        _write(sys.stderr, f"interrupted after {bar.done} nodes: the same command goes on from there\n")
        return INTERRUPTED
    except BrokenPipeError:  # `list | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (HostError, OSError) as error:
        bar.clear()
        _write(sys.stderr, f"error: {error}\n")
        return FAILED
    return DONE


class Bar:
    """A progress bar on ``stream``, drawn only if that is a terminal. ``done`` says how far it got."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = ""
        self.done = 0

    def __call__(self, done: int, total: int) -> None:
        """Take note of the progress, and draw it where that changes what is seen."""
        self.done = done
        full = done * _BAR_WIDTH // total
        text = f"\r[{'#' * full}{'.' * (_BAR_WIDTH - full)}] {done * 100 // total:3}% of {total}"
        if self._stream.isatty() and text != self._drawn:
            self._drawn = text
            _write(self._stream, text)

    def clear(self) -> None:
        """Wipe the line for what is to be said next."""
        if self._drawn:
            _write(self._stream, f"\r{' ' * len(self._drawn)}\r")
            self._drawn = ""


def _create(arguments: argparse.Namespace, binderfs: Binderfs, bar: Bar) -> str:
    way = detect_method() if arguments.way == "auto" else ProvisionMethod(arguments.way)
    request = bulk.Request(
        directory=arguments.device_dir,
        prefix=arguments.prefix,
        first=arguments.start,
        count=arguments.count,
        way=way,
        binderfs=arguments.binderfs_dir,
        mode=arguments.mode,
        max_devices=arguments.max,
    )
    created = bulk.create(request, binderfs, bar)
    first, last = f"{request.prefix}{request.first}", f"{request.prefix}{request.first + request.count - 1}"
    kind = _WAYS[way].format(binderfs=request.binderfs)
    why = _WHY.get(way, "") if arguments.way == "auto" else ""
    return (
        f"{request.directory}: {first} to {last} are there, {created.made} made now and "
        f"{created.present} before ({kind}{why})\n"
    )


def _list(arguments: argparse.Namespace, binderfs: Binderfs, _bar: Bar) -> str:
    made = bulk.made_in(arguments.device_dir, binderfs)
    if arguments.json:
        return json.dumps([one._asdict() for one in made], indent=2) + "\n"
    return "".join(f"{one.name}\t{one.kind}\t{one.target or one.path}\n" for one in made)


def _delete(arguments: argparse.Namespace, binderfs: Binderfs, bar: Bar) -> str:
    deleted = bulk.delete(arguments.device_dir, binderfs, bar)
    bar.clear()
    for line in deleted.left:
        _write(sys.stderr, f"left: {line}\n")
    return f"{arguments.device_dir}: {deleted.removed} nodes deleted, {len(deleted.left)} things left\n"


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _parse(argv: Sequence[str] | None, prog: str) -> argparse.Namespace:
    """Return the arguments with their values checked. Raises SystemExit, as argparse does."""
    parser = argparse.ArgumentParser(prog=prog, description="Create, list and delete binder nodes for tests.")
    commands = parser.add_subparsers(required=True, metavar="create|list|delete")
    create = commands.add_parser("create", help="make the nodes that are missing")
    create.set_defaults(run=_create)
    option = create.add_argument
    limits = _between(1, kernel.ALL_MINORS)
    option("--count", type=limits, required=True, help="how many nodes are to be there")
    option("--start", type=_between(0, kernel.ALL_MINORS), default=0, help="number of the first (%(default)s)")
    option("--prefix", default="aosp_binder", help="names are this and a number (%(default)s)")
    option(
        "--way",
        choices=["auto", *ProvisionMethod],
        default="auto",
        help="auto: the first of these that works here",
    )
    option("--binderfs-dir", type=_path, default="/run/aosp-binderfs", help="our binderfs (%(default)s)")
    option("--mode", type=_mode, default="0666", help="permissions of the nodes (%(default)s)")
    option("--max", type=limits, help="how many nodes our binderfs may hold: its max=")
    listing = commands.add_parser("list", help="list the nodes that create made: name, kind, file")
    listing.set_defaults(run=_list)
    listing.add_argument("--json", action="store_true", help="as JSON")
    delete = commands.add_parser("delete", help="remove what create made, and nothing else")
    delete.set_defaults(run=_delete)
    for one in (create, listing, delete):
        one.add_argument("--device-dir", type=_path, default="/dev", help="where the nodes are (%(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.run is _create:
        _check(arguments, create.error)
    return arguments


def _check(arguments: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> None:
    """Call ``refuse`` with a text where the values of several flags don't go together."""
    last = f"{arguments.prefix}{arguments.start + arguments.count - 1}"
    problem = name_problem(last) if arguments.prefix else "it is only a number"
    if problem is not None:
        refuse(
            f"argument --prefix: {arguments.prefix!r} gives names like {last!r}: {problem}; a name, "
            f"number included, is up to {LONGEST_NAME} printable characters without '/', ',' and space"
        )
    if arguments.binderfs_dir == arguments.device_dir:
        refuse(f"argument --binderfs-dir: {arguments.binderfs_dir!r} is --device-dir too: choose another")
    if arguments.max is not None and arguments.way in {ProvisionMethod.MKNOD, ProvisionMethod.FILE}:
        refuse(f"argument --max: {arguments.max} says nothing to --way {arguments.way}: binderfs alone has it")


def _between(lowest: int, highest: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {lowest} to {highest}")
        return int(text)

    return number


def _mode(text: str) -> int:
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an octal mode from 0000 to 0777")
    return int(text, 8)


def _path(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a path")
    # Links out of the way: the mount table has none, and the ledger has to know a directory again.
    return os.path.realpath(text)
