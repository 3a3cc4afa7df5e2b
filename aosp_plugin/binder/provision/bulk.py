"""Thousands of binder devices on a test host: created, listed and deleted by ``aosp-plugin nodes``.

There is no record of what was created. The tool's own binderfs is recognised by the source of its mount, which names
the device directory. A device is recognised by its name, the prefix and a number, and by what it is:

- a link in the device directory to a binder device of the same name in the tool's own binderfs;
- a stand-in, if they were requested: a character device with the number of /dev/null, or an empty file.

So an interrupted command leaves nothing that the next one does not recognise: ``create`` continues, ``delete`` removes.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from typing import NamedTuple

from aosp_plugin.binder.devices.scanner import Kind
from aosp_plugin.binder.devices.sets import name_problem, natural_key
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import binder_parameters
from aosp_plugin.binder.host_errors import BinderfsError, DeviceDirectoryError, DeviceExistsError
from aosp_plugin.binder.provision.device_provisioner import (
    MODE,
    check_directory,
    create_or_restore,
    mount_if_missing,
    set_mode,
    translated_errors,
)

DEVICE_DIR = "/dev"
PREFIX = "aosp_binder"
BINDERFS_DIR = "/run/aosp-binderfs/nodes"

_NULL = os.makedev(1, 3)
"""The number of /dev/null (Documentation/admin-guide/devices.txt), which every user may open."""


class PoolDevice(NamedTuple):
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
        # The mount table and the links have paths without links.
        self._directory = os.path.realpath(device_dir)
        self._binderfs = os.path.realpath(binderfs_dir)
        self._source = f"aosp-nodes:{self._directory}"
        self._prefix = prefix
        self._pattern = re.compile(re.escape(prefix) + "(0|[1-9][0-9]*)")

    def create(self, count: int, first: int = 0, *, max_devices: int | None = None, stand_ins: bool = False) -> str:
        """Create those of the ``count`` devices from number ``first`` on that are missing. Return a summary.

        If a name is in use by another file, nothing is created. Raises ValueError for a prefix that is not allowed, and
        HostError.
        """
        names = [f"{self._prefix}{number}" for number in range(first, first + count)]
        if (problem := name_problem(names[-1])) is not None:
            raise ValueError(f"--prefix: {self._prefix!r} gives names like {names[-1]!r}: {problem}")
        with translated_errors(f"create devices in {self._directory}"):
            existing = self._existing()
            self._require_free(names, existing, stand_ins=stand_ins)
            if stand_ins:
                created = sum(map(self._create_stand_in, names))
                kind = "null devices, not binder" if os.geteuid() == 0 else "empty files, not binder"
            else:
                if not self._is_mounted():
                    check_directory(self._binderfs)
                mount_if_missing(self._binderfs, max_devices, self._source)
                created = sum(self._create_device(name, linked=name in existing) for name in names)
                kind = f"binderfs at {self._binderfs}"
        span = names[0] if count == 1 else f"{names[0]} to {names[-1]}"
        present = count - created
        return f"{self._directory}: {_devices(created)} created, {present} already present ({span}, {kind})\n"

    def list(self) -> list[PoolDevice]:
        """Return the devices in natural order. Raises HostError."""
        return [
            PoolDevice(
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
        note = ""
        with translated_errors(f"delete devices in {self._directory}"):
            files = {name for name, kind in self._existing().items() if kind is not None}
            mounted = self._is_mounted()
            devices = set(filter(self._pattern.fullmatch, binderfs.device_names(self._binderfs))) if mounted else set()
            # The device before its link: a link without a device is recognised by the next call.
            for name in devices | files:
                if mounted:
                    binderfs.remove_device(self._binderfs, name)
                if name in files:
                    os.unlink(f"{self._directory}/{name}")
            if mounted:
                note = self._unmount()
        return f"{self._directory}: {_devices(len(devices | files))} deleted\n{note}"

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
        for name in names:
            if name in existing and existing[name] not in own:
                raise DeviceExistsError(
                    f"{self._directory}/{name} is in the way: remove it, or choose another --prefix or --start"
                )

    def _create_stand_in(self, name: str) -> bool:
        """Create a stand-in, or restore its mode. Return whether anything was changed."""
        path = f"{self._directory}/{name}"
        created = not os.path.lexists(path)
        if created:
            kind, number = (stat.S_IFCHR, _NULL) if os.geteuid() == 0 else (stat.S_IFREG, 0)
            os.mknod(path, kind | MODE, number)
        return set_mode(path, MODE) or created

    def _create_device(self, name: str, *, linked: bool) -> bool:
        """Create a binder device and its link, or restore its mode. Return whether anything was changed."""
        changed = create_or_restore(self._binderfs, name)
        # The link comes last: a plugin that watches the directory considers the device usable from then on.
        if not linked:
            os.symlink(f"{self._binderfs}/{name}", f"{self._directory}/{name}")
        return changed or not linked

    def _is_mounted(self) -> bool:
        """Return whether the tool's binderfs is mounted. Raises BinderfsError if another one is in its place."""
        mounted = binderfs.mount_at(self._binderfs)
        if mounted is not None and mounted.source != self._source:
            raise BinderfsError(
                f"{self._binderfs} is a binderfs that was not created for devices in {self._directory}: unmount it"
            )
        return mounted is not None

    def _unmount(self) -> str:
        """Unmount the binderfs if it has no other devices, else return a line that names one."""
        of_kernel = re.split("[,\n]", binder_parameters())
        others = sorted({*binderfs.device_names(self._binderfs)} - {*of_kernel}, key=natural_key)
        if others:
            return f"{self._binderfs} stays mounted: it has other devices ({others[0]})\n"
        binderfs.unmount(self._binderfs)
        return ""


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
