"""Thousands of binder devices on a test host: created, listed and deleted by ``aosp-plugin nodes``.

There is no record of what was created. The tool's own binderfs is recognised by the source of its mount, which names
the device directory. A device is recognised by its name, the prefix and a number, and by what it is:

- a link in the device directory to a binder device of the same name in the tool's own binderfs;
- a stand-in, if they were requested: a character device with the number of /dev/null, or an empty file.

So an interrupted command leaves nothing that the next one does not recognise: ``create`` continues, ``delete`` removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.discovery.names import LONGEST_NAME, name_problem, natural_key
from aosp_plugin.binder.driver import binderfs, mounts
from aosp_plugin.binder.driver.host import FILE_SYSTEMS, binder_parameters
from aosp_plugin.binder.errors import BinderfsError, BinderMissingError, DeviceDirectoryError, DeviceExistsError
from aosp_plugin.binder.provision.device_provisioner import mount_if_missing, set_mode, translated_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

DEVICE_DIR = "/dev"
PREFIX = "aosp_binder"
BINDERFS_DIR = "/run/aosp-binderfs/nodes"
MODE = "0666"

_NULL = os.makedev(1, 3)
"""The number of /dev/null (Documentation/admin-guide/devices.txt), which every user may open."""


class ListedDevice(NamedTuple):
    """A created device, as ``list`` shows it."""

    name: str
    kind: Kind
    """ABSENT if its link leads nowhere."""
    path: str
    target: str
    """Where the link at ``path`` leads; empty for a stand-in."""


class DevicePool:
    """The devices with one prefix in one device directory, whose binderfs belongs to the tool alone."""

    def __init__(self, device_dir: str = DEVICE_DIR, prefix: str = PREFIX, binderfs_dir: str = BINDERFS_DIR) -> None:
        """Check the values. Raises ValueError."""
        for flag, value in (("--device-dir", device_dir), ("--prefix", prefix), ("--binderfs-dir", binderfs_dir)):
            if not value:
                raise ValueError(f"{flag}: '' is not allowed: it is empty")
        # The mount table and the links have paths without links.
        self._directory = os.path.realpath(device_dir)
        self._binderfs = os.path.realpath(binderfs_dir)
        self._source = f"aosp-nodes:{self._directory}"
        self._prefix = prefix
        self._pattern = re.compile(re.escape(prefix) + "(0|[1-9][0-9]*)")
        if self._directory == self._binderfs:
            raise ValueError(f"--binderfs-dir: {binderfs_dir!r} is --device-dir too: choose another directory")
        if (problem := name_problem(f"{prefix}0")) is not None:
            raise ValueError(f"--prefix: {prefix!r} is not allowed: {problem}")

    def create(
        self, count: int, first: int = 0, *, mode: int = 0o666, max_devices: int | None = None, stand_ins: bool = False
    ) -> str:
        """Create those of the ``count`` devices from number ``first`` on that are missing. Return a summary.

        If a name is in use by another file, nothing is created. Raises ValueError for values that are not allowed, and
        HostError.
        """
        self._check(count, first, max_devices, stand_ins=stand_ins)
        names = [f"{self._prefix}{number}" for number in range(first, first + count)]
        with translated_errors(f"create devices in {self._directory}"):
            existing = self._existing()
            self._require_free(names, existing, stand_ins=stand_ins)
            if stand_ins:
                created = [self._create_stand_in(name, mode) for name in names]
                kind = "null devices, not binder" if os.geteuid() == 0 else "empty files, not binder"
            else:
                self._mount(max_devices)
                created = [self._create_device(name, mode, linked=name in existing) for name in names]
                kind = f"binderfs at {self._binderfs}"
        noun = "stand-in" if stand_ins else "binder device"
        span = names[0] if count == 1 else f"{names[0]} to {names[-1]}"
        present = count - sum(created)
        return f"{self._directory}: {_plural(sum(created), noun)} created, {present} already present ({span}, {kind})\n"

    def list(self) -> list[ListedDevice]:
        """Return the devices in natural order. Raises HostError."""
        return [
            ListedDevice(
                name,
                kind if os.path.exists(f"{self._directory}/{name}") else Kind.ABSENT,
                f"{self._directory}/{name}",
                f"{self._binderfs}/{name}" if kind is Kind.BINDERFS else "",
            )
            for name, kind in sorted(self._existing().items(), key=lambda item: natural_key(item[0]))
            if kind is not None
        ]

    def delete(self) -> str:
        """Remove the devices, and unmount the tool's binderfs. Return a summary.

        The binderfs stays mounted if it has other devices than the tool's and those that the kernel creates at each
        mount. Its directory always stays: a container that has it as a volume would keep the old one. Raises HostError;
        if another binderfs is mounted there, nothing is removed.
        """
        with translated_errors(f"delete devices in {self._directory}"):
            existing = self._existing()
            mounted = self._is_mounted()
            devices = set(filter(self._pattern.fullmatch, binderfs.devices_in(self._binderfs))) if mounted else set()
            links = {name for name, kind in existing.items() if kind is Kind.BINDERFS}
            stand_ins = [name for name, kind in existing.items() if kind in {Kind.STAND_IN, Kind.FILE}]
            # The device before its link: a link without a device is recognised by the next call.
            for name in devices | links:
                if mounted:
                    binderfs.remove_device(self._binderfs, name)
                if name in links:
                    self._unlink(name)
            for name in stand_ins:
                self._unlink(name)
            note = self._unmount() if mounted else ""
        parts = [_plural(len(devices | links), "binder device")] if links or devices or not stand_ins else []
        parts += [_plural(len(stand_ins), "stand-in")] if stand_ins else []
        return f"{self._directory}: {' and '.join(parts)} deleted\n{note}"

    def _check(self, count: int, first: int, max_devices: int | None, *, stand_ins: bool) -> None:
        for flag, value, lowest in (("--count", count, 1), ("--start", first, 0), ("--max", max_devices, 1)):
            if value is not None and not lowest <= value <= binderfs.ALL_MINORS:
                raise ValueError(f"{flag}: {value} is not a number from {lowest} to {binderfs.ALL_MINORS}")
        last = f"{self._prefix}{first + count - 1}"
        if (problem := name_problem(last)) is not None:
            raise ValueError(
                f"--prefix: {self._prefix!r} gives names like {last!r}: {problem}; a name has up to {LONGEST_NAME} "
                "characters, number included"
            )
        if f"{self._binderfs}/".startswith("/dev/") and not stand_ins:
            raise ValueError(
                f"--binderfs-dir: {self._binderfs!r} is below /dev, of which a privileged container gets every device: "
                "choose a directory elsewhere, for example below /run/aosp-binderfs"
            )
        if stand_ins and max_devices is not None:
            raise ValueError("--max: not allowed with --stand-ins, which mounts no binderfs")

    def _existing(self) -> dict[str, Kind | None]:
        """Return each file of the device directory with the prefix and a number; None for other files than ours."""
        try:
            names = os.listdir(self._directory)
        except OSError as error:
            text = f"cannot read the device directory {self._directory}: {error.strerror}"
            raise DeviceDirectoryError(text) from error
        return {name: self._kind(name) for name in names if self._pattern.fullmatch(name)}

    def _kind(self, name: str) -> Kind | None:
        path = f"{self._directory}/{name}"
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                return Kind.BINDERFS if os.readlink(path) == f"{self._binderfs}/{name}" else None
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL:
                return Kind.STAND_IN
            if stat.S_ISREG(status.st_mode) and status.st_size == 0:
                return Kind.FILE
        return None

    def _require_free(self, names: Iterable[str], existing: dict[str, Kind | None], *, stand_ins: bool) -> None:
        own = {Kind.STAND_IN, Kind.FILE} if stand_ins else {Kind.BINDERFS}
        conflicts = [f"{self._directory}/{name}" for name in names if name in existing and existing[name] not in own]
        if conflicts:
            more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
            raise DeviceExistsError(
                f"{conflicts[0]}{more} is in the way: {_describe(conflicts[0])}: remove it, or choose another --prefix "
                "or --start"
            )

    def _create_stand_in(self, name: str, mode: int) -> bool:
        """Create a stand-in, or give it the mode. Return whether it was created."""
        path = f"{self._directory}/{name}"
        created = not os.path.lexists(path)
        with translated_errors(f"create {path}"):
            if created:
                kind, number = (stat.S_IFCHR, _NULL) if os.geteuid() == 0 else (stat.S_IFREG, 0)
                os.mknod(path, kind | mode, number)
            set_mode(path, mode)
        return created

    def _create_device(self, name: str, mode: int, *, linked: bool) -> bool:
        """Create a binder device and its link, unless they exist. Return whether anything was created."""
        path = f"{self._binderfs}/{name}"
        exists = os.path.lexists(path)
        if not exists:
            binderfs.add_device(self._binderfs, name)
        set_mode(path, mode)
        # The link comes last: a plugin that watches the directory considers the device usable from then on.
        if not linked:
            os.symlink(path, f"{self._directory}/{name}")
        return not (exists and linked)

    def _is_mounted(self) -> bool:
        """Return whether the tool's binderfs is mounted. Raises BinderfsError if another one is in its place."""
        mounted = binderfs.mount_at(self._binderfs)
        if mounted is not None and mounted.source != self._source:
            raise BinderfsError(
                f"{self._binderfs} is a binderfs that was not created for devices in {self._directory}: choose another "
                "--binderfs-dir"
            )
        return mounted is not None

    def _mount(self, max_devices: int | None) -> None:
        if not self._is_mounted() and not _has_binderfs():
            raise BinderMissingError(
                "this kernel has no binderfs: modprobe binder_linux, or boot a kernel with CONFIG_ANDROID_BINDERFS; "
                "--stand-ins creates test devices that are not binder"
            )
        mount_if_missing(self._binderfs, max_devices, self._source)

    def _unmount(self) -> str:
        """Unmount the binderfs if it has no other devices, else return a line that names one."""
        of_kernel = re.split("[,\n]", binder_parameters())
        others = sorted({*binderfs.devices_in(self._binderfs)} - {*of_kernel}, key=natural_key)
        if others:
            return f"{self._binderfs} stays mounted: it has {_plural(len(others), 'other device')} ({others[0]})\n"
        binderfs.unmount(self._binderfs)
        return ""

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._directory}/{name}")


def octal_mode(text: str) -> int:
    """Read permissions in octal, from 0000 to 0777. Raises ValueError."""
    if not re.fullmatch("0?[0-7]{3}", text):
        raise ValueError(f"{text!r} is not an octal mode from 0000 to 0777")
    return int(text, 8)


def _has_binderfs() -> bool:
    with open(FILE_SYSTEMS, encoding="ascii") as file:
        return mounts.BINDERFS in file.read().split()


def _describe(path: str) -> str:
    """Return what a file is, for an error about it."""
    status = os.lstat(path)
    match stat.S_IFMT(status.st_mode):
        case stat.S_IFLNK:
            return f"a link to {os.readlink(path)}"
        case stat.S_IFCHR if status.st_rdev == _NULL:
            return "a stand-in, a null device"
        case stat.S_IFCHR:
            return f"a character device {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        case stat.S_IFREG:
            return "a file with content" if status.st_size else "an empty file"
        case stat.S_IFDIR:
            return "a directory"
        case _:
            return "neither a device nor a file"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
