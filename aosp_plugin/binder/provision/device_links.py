"""Links on the host to binder devices by their numbers, ``/dev/char/MAJOR:MINOR``, so that containers keep the devices.

udev makes such a link for each device in sysfs. The devices of a binderfs are not there, so the processes that make
phones link them. A runtime with the systemd cgroup driver names the devices of a container to systemd by these paths:

- runc 1.1.3 to 1.1.6 leaves out a device without a link (libcontainer/cgroups/systemd/common.go
  ``generateDeviceProperties``; 1.1.5 and 1.1.6 also accept an entry in /sys/dev/char). Others do not look.
- systemd before 240 leaves it out, whatever the runtime is, because it reads the number from the device at that path;
  since 240, it reads the number from the path (src/core/bpf-devices.c ``bpf_devices_allow_list_device``).

The container can open the device all the same, until systemd applies its own filter again: after ``systemctl
daemon-reload``, ``systemctl set-property``, and a change of the container's CPU or memory. Then each open fails with
EPERM.
"""

import contextlib
import functools
import logging
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence

from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)

DIRECTORY = "/dev/char"
"""The host's directory of these links."""


class DeviceLinks:
    """Keeps the links to binder devices. For the thread that changes the devices.

    A link is right if it leads to a device of its number, whoever made it. Without the right to write the host's
    /dev/char there are no links; the first failure is logged.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._repaired: tuple[Mapping[str, str], Collection[str]] = {}, ()
        """The devices of the last repair of all links, and the names that it left. Others may make links meanwhile: a
        device that is recreated twice can have its first number again, and the link of the number between stays."""
        self._directories: set[str] = set()
        """The binderfs mounts in which ``link_found`` has linked devices."""

    def link_found(self, devices: Iterable[BinderDevice], *, repair: bool) -> int:
        """Return how many of the devices in a binderfs have no link. Raises OSError.

        ``repair``: link them before.
        """
        numbered = {
            link_name(device.identity.st_rdev): device
            for device in devices
            if device.kind is Kind.BINDERFS and device.identity is not None
        }
        if repair:
            # A device that is bind-mounted alone gets no link: others have files in the same directory.
            linkable = {name: device for name, device in numbered.items() if device.directory}
            self._directories |= {device.directory for device in linkable.values()}
            self.repair({name: device.real_path for name, device in linkable.items()}, self._directories)
        return len(numbered.keys() - {*self._names()})

    def repair(self, devices: Mapping[str, str], directories: Iterable[str] = ()) -> None:
        """Link ``devices``, and remove wrong links that lead below ``directories``.

        ``devices`` are paths of the host by the names of their links. With directories, they are all devices; while
        devices and names of links are those of the last call, no link is read. Without, other links are not read.
        """
        try:
            self._repair(devices, sorted(directories))
        except OSError as error:
            _log(error.strerror or str(error))

    def remove(self, names: Iterable[str]) -> None:
        """Remove those of these links that lead to no device of their number, without a look at others."""
        try:
            for name in names:
                if not self._is_right(name):
                    self._unlink(name)
        except OSError as error:
            _log(error.strerror or str(error))

    def _repair(self, devices: Mapping[str, str], directories: Sequence[str]) -> None:
        if directories:
            names = {*self._names()}
            if devices and devices.keys() <= names and (devices, names) == self._repaired:
                return
            below = tuple(f"{self._host.resolve(directory)}/" for directory in directories)
            for name in sorted(names - devices.keys()):
                if self._target(name).startswith(below) and not self._is_right(name):
                    self._unlink(name)
        self._repaired = {}, ()  # after a failure, and of what becomes of single devices, nothing is known
        if devices:
            os.makedirs(self._host.process_path(DIRECTORY), exist_ok=True)  # for a host without udev
        for name, path in devices.items():
            target = self._target(name)
            if target != path and not (target and self._is_right(name)):  # it led to a device that is gone
                self._unlink(name)
                with contextlib.suppress(FileExistsError):  # a plugin that this one replaces has made it meanwhile
                    os.symlink(path, self._path(name))
        if directories:
            self._repaired = devices, {*self._names()}

    def _names(self) -> Collection[str]:
        """Return the names of all links, of other programs too. Raises OSError."""
        try:
            return self._host.listdir(DIRECTORY)
        except FileNotFoundError:
            return ()

    def _target(self, name: str) -> str:
        """Return what a link leads to; empty if it does not exist."""
        with contextlib.suppress(OSError):
            return os.readlink(self._path(name))
        return ""

    def _is_right(self, name: str) -> bool:
        """Return whether a link leads to a device of its number, as far as this process sees it."""
        with contextlib.suppress(OSError):
            return link_name(self._host.lstat(self._host.resolve(f"{DIRECTORY}/{name}")).st_rdev) == name
        return False

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        return self._host.process_path(f"{DIRECTORY}/{name}")


def link_name(st_rdev: int) -> str:
    """Return the name of the link to the device with this number."""
    return f"{os.major(st_rdev)}:{os.minor(st_rdev)}"


def devices_below(host: Host, directory: str, names: Iterable[str]) -> dict[str, str]:
    """Return the paths on the host of these files of a directory that are devices, by the names of their links."""
    found, resolved = {}, host.resolve(directory)
    for name in names:
        path = f"{resolved}/{name}"
        with contextlib.suppress(OSError):
            status = host.lstat(path)
            if stat.S_ISCHR(status.st_mode):
                found[link_name(status.st_rdev)] = path
    return found


@functools.cache
def _log(error: str) -> None:
    """Log why links cannot be written, once for each cause: the status reports the devices without a link."""
    LOG.warning("device links not written", extra={"path": DIRECTORY, "error": error})
