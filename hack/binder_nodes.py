#!/usr/bin/env python3
"""Create, list and delete binder devices on a test host: ``aosp-plugin nodes`` with Python alone.

hack/binder_nodes.py create --count 5000
hack/binder_nodes.py list
hack/binder_nodes.py delete
"""

import argparse
import json
import os
import sys
from typing import NoReturn

if sys.version_info < (3, 11):  # noqa: UP036 - no installer has checked the version
    sys.exit("binder_nodes: Python 3.11 or later is required; this is " + sys.version.split()[0])

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from aosp_plugin.binder.errors import HostError
from aosp_plugin.binder.provision import bulk


class Parser(argparse.ArgumentParser):
    """Reports bad usage in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"binder_nodes: {message}\n")


def octal_mode(text: str) -> int:
    """Return the mode. argparse prints the text of this error only."""
    try:
        return bulk.octal_mode(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse() -> argparse.Namespace:
    """Return the command and its flags, which are those of ``aosp-plugin nodes``."""
    parser = Parser(description="Create, list and delete binder devices on a test host.")
    commands = parser.add_subparsers(required=True, dest="command", metavar="create|list|delete")
    create = commands.add_parser("create", help="create the devices that are missing")
    create.add_argument("--count", type=int, required=True, help="number of devices")
    create.add_argument("--start", type=int, default=0, help="number of the first device (%(default)s)")
    create.add_argument("--stand-ins", action="store_true", help="create test devices that are not binder")
    create.add_argument("--max", type=int, help="mount option max= of the binderfs")
    create.add_argument("--mode", type=octal_mode, default=bulk.MODE, help="permissions (%(default)s)")
    listing = commands.add_parser("list", help="list the created devices")
    listing.add_argument("--json", action="store_true", help="print the devices as JSON")
    delete = commands.add_parser("delete", help="delete the created devices, and unmount their binderfs")
    for command in (create, listing, delete):
        command.add_argument("--device-dir", default=bulk.DEVICE_DIR, help="device directory (%(default)s)")
        command.add_argument("--prefix", default=bulk.PREFIX, help="name before the number (%(default)s)")
        command.add_argument("--binderfs-dir", default=bulk.BINDERFS_DIR, help="the tool's binderfs (%(default)s)")
    return parser.parse_args()


def run(flags: argparse.Namespace) -> str:
    """Run the command and return its output. Raises ValueError for bad usage, and HostError."""
    pool = bulk.DevicePool(flags.device_dir, flags.prefix, flags.binderfs_dir)
    if flags.command == "create":
        return pool.create(flags.count, flags.start, mode=flags.mode, max_devices=flags.max, stand_ins=flags.stand_ins)
    if flags.command == "delete":
        return pool.delete()
    if flags.json:
        return json.dumps([device._asdict() for device in pool.list()], indent=2) + "\n"
    return "".join(f"{device.name}\t{device.kind}\t{device.target or device.path}\n" for device in pool.list())


if __name__ == "__main__":
    try:
        sys.stdout.write(run(parse()))
        sys.stdout.flush()
    except (HostError, ValueError) as failure:
        sys.stderr.write(f"binder_nodes: {failure}\n")
        sys.exit(2 if isinstance(failure, ValueError) else 1)
    except KeyboardInterrupt:
        sys.stderr.write(f"binder_nodes: {bulk.INTERRUPTED}\n")
        sys.exit(bulk.INTERRUPTED_EXIT_CODE)
    except OSError as failure:  # standard output is not writable
        if not isinstance(failure, BrokenPipeError):  # as in `list | head`
            sys.stderr.write(f"binder_nodes: {failure}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would write again at its end
        sys.exit(1)
