#!/usr/bin/env python3
"""Create, list and delete thousands of binder devices on a test host.

    sudo hack/binder_devices.py create --count 5000
    hack/binder_devices.py create --count 5000 --stand-ins --device-dir DIRECTORY
    hack/binder_devices.py list
    sudo hack/binder_devices.py delete

The file runs alone, with Python 3.9 or newer and its standard library. ``create`` mounts a binderfs of its own, creates
the binder devices in it, and a link to each in the device directory. Stand-ins are for tests without the driver: null
devices if root creates them, otherwise empty files.

Nothing records what was created. The binderfs is recognised by the source of its mount, which names the device
directory. A device is recognised by its name, the prefix and a number, and by what it is: a link to the file of that
name in this binderfs, a null device, or an empty file. After an interruption, the same command therefore does the rest.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
import sys
from collections.abc import Iterator, Sequence

BINDERFS = "/run/aosp-binderfs/test-devices"
"""The mount point: outside /dev, and below the directory that the plugin's pods have as a volume."""

BINDER, NULL_DEVICE, EMPTY_FILE, MISSING = "binder", "null device", "empty file", "missing"
"""The kinds of devices. MISSING is a link that leads nowhere."""

BINDER_CTL_ADD = 0xC1086201
"""_IOWR('b', 1, struct binderfs_device), include/uapi/linux/android/binderfs.h."""

MODE = 0o666
"""The permissions of a device: Android's processes run as many users."""

_REQUEST = struct.Struct("256sII")
"""struct binderfs_device: the name, and the major and minor number that the kernel returns."""

_NULL = os.makedev(1, 3)  # Documentation/admin-guide/devices.txt
_UMOUNT_NOFOLLOW = 8  # include/linux/fs.h
_CLEAR = "\r\033[K" if sys.stderr.isatty() else ""
"""The escape sequence that clears a line; empty if stderr is not a terminal."""


class CommandError(Exception):
    """A command cannot do its work; the text says why, in one line."""


class Devices:
    """The devices with one prefix in one device directory."""

    def __init__(self, directory: str, prefix: str) -> None:
        self.directory = os.path.realpath(directory)  # the mount table has no links
        self.prefix = prefix
        self._pattern = re.compile(re.escape(prefix) + "(0|[1-9][0-9]*)")
        self._source = f"aosp-test-devices:{self.directory}"

    def create(self, first: int, count: int, *, stand_ins: bool) -> int:
        """Create the missing ones of ``count`` devices, from number ``first`` on, and return how many were missing.

        If another file has one of the names, nothing is created. Raises CommandError and OSError.
        """
        names, existing = [f"{self.prefix}{number}" for number in range(first, first + count)], self.existing()
        own = {NULL_DEVICE, EMPTY_FILE} if stand_ins else {BINDER, MISSING}
        for name in names:
            if name in existing and existing[name] not in own:
                path = f"{self.directory}/{name}"
                raise CommandError(f"{path} is in the way: remove it, or choose another --prefix or --start")
        if stand_ins:
            missing = [name for name in names if name not in existing]
            for name in _with_progress(missing):
                create_stand_in(f"{self.directory}/{name}")
            return len(missing)
        if not self._is_mounted():
            os.makedirs(BINDERFS, exist_ok=True)
            mount(BINDERFS, self._source)
        return sum(self._create_linked(name, is_linked=name in existing) for name in _with_progress(names))

    def existing(self) -> dict[str, str]:
        """Return what each file with the prefix and a number is, in the order of the numbers; empty if it is foreign.

        Raises OSError.
        """
        names = filter(self._pattern.fullmatch, os.listdir(self.directory))
        return {name: self._kind(name) for name in sorted(names, key=lambda name: int(name[len(self.prefix) :]))}

    def delete(self) -> int:
        """Remove the devices, and unmount the binderfs if no device is left in it. Return the number of devices.

        The directory of the binderfs stays: a container that has it as a volume would keep the old one. Raises
        CommandError and OSError.
        """
        files = {name for name, kind in self.existing().items() if kind}
        is_mounted = self._is_mounted()
        devices = set(filter(self._pattern.fullmatch, os.listdir(BINDERFS))) if is_mounted else set()
        # The device before its link, which the next command recognises without the device.
        for name in _with_progress([*devices | files]):
            if name in devices:
                os.unlink(f"{BINDERFS}/{name}")
            if name in files:
                os.unlink(f"{self.directory}/{name}")
        if is_mounted and not self._has_other_links():
            unmount(BINDERFS)
        return len(devices | files)

    def _create_linked(self, name: str, *, is_linked: bool) -> bool:
        """Create a binder device, its mode and its link where missing. Return whether any was."""
        device = f"{BINDERFS}/{name}"
        is_new = not os.path.lexists(device)
        if is_new:
            add_device(BINDERFS, name)
        if stat.S_IMODE(os.stat(device).st_mode) != MODE:
            os.chmod(device, MODE)
        # The link comes last: a plugin that watches the directory considers the device usable from then on.
        if not is_linked:
            os.symlink(device, f"{self.directory}/{name}")
        return is_new or not is_linked

    def _kind(self, name: str) -> str:
        path = f"{self.directory}/{name}"
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode) and os.readlink(path) == f"{BINDERFS}/{name}":
            return BINDER if os.path.exists(path) else MISSING
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL:
            return NULL_DEVICE
        return EMPTY_FILE if stat.S_ISREG(status.st_mode) and status.st_size == 0 else ""

    def _is_mounted(self) -> bool:
        """Return whether the binderfs of this device directory is mounted.

        Raises CommandError if the binderfs of another directory is.
        """
        source = mounted_source(BINDERFS)
        if source not in {"", self._source.replace(" ", r"\040")}:
            raise CommandError(f"the binderfs at {BINDERFS} is not for {self.directory} but is {source}: unmount it")
        return bool(source)

    def _has_other_links(self) -> bool:
        """Return whether there are links of another prefix to devices in the binderfs."""
        with os.scandir(self.directory) as entries:
            return any(os.path.dirname(os.readlink(each.path)) == BINDERFS for each in entries if each.is_symlink())


def create_stand_in(path: str) -> None:
    """Create a null device as root, otherwise an empty file."""
    umask = os.umask(0)
    try:
        os.mknod(path, (stat.S_IFCHR if os.geteuid() == 0 else stat.S_IFREG) | MODE, _NULL)
    finally:
        os.umask(umask)


def add_device(directory: str, name: str) -> None:
    """Create a binder device in the binderfs at ``directory``. Its owner is root, and its mode is 0600.

    Raises CommandError at a limit, and OSError.
    """
    control = os.open(f"{directory}/binder-control", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(control, BINDER_CTL_ADD, _REQUEST.pack(name.encode(), 0, 0))
    except OSError as error:
        # drivers/android/binderfs.c, binderfs_binder_device_create: ENOSPC for both limits, EEXIST for a name in use.
        if error.errno != errno.ENOSPC:
            raise
        limits = "max= of this mount, or BINDERFS_MAX_MINOR, 2^20 devices of all mounts"
        raise CommandError(f"cannot create {directory}/{name}: a limit is reached: {limits}") from error
    finally:
        os.close(control)


def mount(directory: str, source: str) -> None:
    """Mount a new binderfs. Raises CommandError."""
    if code := _call("mount", source.encode(), directory.encode(), b"binder", ctypes.c_ulong(0), b""):
        text = os.strerror(code)
        if code == errno.ENODEV:
            loaded = any(os.path.exists(f"/sys/module/{name}") for name in ("binder_linux", "binder"))
            action = "modprobe binder_linux, or boot one with CONFIG_ANDROID_BINDERFS"
            without = "its driver is loaded, and was built without CONFIG_ANDROID_BINDERFS"
            text = f"this kernel has no binderfs: {without if loaded else action}"
        raise CommandError(f"cannot mount a binderfs on {directory}: {text}")


def unmount(directory: str) -> None:
    """Unmount a binderfs. Raises CommandError."""
    if code := _call("umount2", directory.encode(), _UMOUNT_NOFOLLOW):
        in_use = "a process has one of its devices open: end it, and run the same command again"
        text = in_use if code == errno.EBUSY else os.strerror(code)
        raise CommandError(f"cannot unmount {directory}: {text}")


def mounted_source(directory: str) -> str:
    """Return the source of the topmost binderfs at ``directory``, as the mount table has it; empty if there is none."""
    found = ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            place, _, file_system = line.partition(" - ")
            kind, source = file_system.split(" ")[:2]
            if (place.split(" ")[4], kind) == (directory, "binder"):
                found = source
    return found


def _call(function: str, *arguments: object) -> int:
    """Call a function of the C library, and return its errno; 0 if it succeeds."""
    result = getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments)
    return ctypes.get_errno() if result else 0


def _with_progress(names: Sequence[str]) -> Iterator[str]:
    """Yield the names, and show on a terminal how many are done."""
    for done, name in enumerate(names):
        if _CLEAR and done % 100 == 0:
            print(f"{_CLEAR}{done} of {len(names)} devices", end="", file=sys.stderr, flush=True)
        yield name
    print(_CLEAR, end="", file=sys.stderr, flush=True)


def _create(devices: Devices, options: argparse.Namespace) -> str:
    created = devices.create(options.start, options.count, stand_ins=options.stand_ins)
    kind = f"binder devices at {BINDERFS}"
    if options.stand_ins:
        kind = "null devices, not binder" if os.geteuid() == 0 else "empty files, not binder"
    return f"{devices.directory}: {created} created, {options.count - created} already present ({kind})"


def _list(devices: Devices, _options: argparse.Namespace) -> str:
    own = {name: kind for name, kind in devices.existing().items() if kind}
    lines = [f"{name}\t{kind}\t{os.path.realpath(f'{devices.directory}/{name}')}" for name, kind in own.items()]
    counts = [f"{count} {kind}" for kind, count in collections.Counter(own.values()).items()]
    return "\n".join([*lines, f"{devices.directory}: {', '.join(counts) or 'no devices'}"])


def _delete(devices: Devices, _options: argparse.Namespace) -> str:
    return f"{devices.directory}: {devices.delete()} deleted"


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][\w.-]{0,49}", text, re.ASCII):
        raise argparse.ArgumentTypeError("a letter, then at most 49 letters, digits, '.', '-' and '_'")
    return text


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,7}", text):
        raise argparse.ArgumentTypeError("a number of at most 7 digits")
    return int(text)


def _options() -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--device-dir", default="/dev", help="device directory (default: %(default)s)")
    common.add_argument(
        "--prefix", type=_prefix, default="aosp_binder", help="before the number (default: %(default)s)"
    )
    parser = argparse.ArgumentParser(description="Create, list and delete binder devices on a test host.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = commands.add_parser("create", parents=[common], help="create the devices that are missing")
    create.add_argument("--count", type=_number, required=True, help="number of devices")
    create.add_argument("--start", type=_number, default=0, help="number of the first device (default: %(default)s)")
    create.add_argument("--stand-ins", action="store_true", help="null devices, or empty files without root")
    create.set_defaults(run=_create)
    commands.add_parser("list", parents=[common], help="list the devices").set_defaults(run=_list)
    commands.add_parser("delete", parents=[common], help="delete devices and binderfs").set_defaults(run=_delete)
    return parser.parse_args()


def main() -> int:
    """Run a command, and return its exit code: 1 after a failure, 130 after an interruption."""
    options = _options()
    code, problem = 1, ""
    try:
        print(options.run(Devices(options.device_dir, options.prefix), options))
    except KeyboardInterrupt:
        code, problem = 130, "interrupted: run the same command again to continue"
    except PermissionError as error:
        problem = f"{error}: run as root, or create --stand-ins in a --device-dir of your own"
    except (CommandError, OSError) as error:
        problem = str(error)
    if problem:
        print(f"{_CLEAR}binder_devices.py: {problem}", file=sys.stderr)
    return code if problem else 0


if __name__ == "__main__":
    sys.exit(main())
