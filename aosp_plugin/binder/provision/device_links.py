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
import posixpath
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping

from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)

DIRECTORY = "/dev/char"
"""The host's directory of these links."""


class DeviceLinks:
    """The links to the devices of binderfs below one directory of the host. For the thread that changes the devices.

    Their targets identify them: a link that leads elsewhere is another program's. It stays, unless it has the number of
    a device here and leads to no device of that number: the number belonged to another driver, or directory, before.
    Without the right to write the host's /dev/char there are no links, and no method fails; the first failure is
    logged.
    """

    def __init__(self, host: Host, directory: str) -> None:
        """``directory`` is the host's. The host is not accessed."""
        self._host = host
        self._directory = directory
        self._repaired: Mapping[str, str] = {}

    def replace(self, old: Iterable[str], new: Mapping[str, str]) -> None:
        """Remove links by name, and add those to ``new``: paths below the directory, by the names of their links."""
        with _logged_failures():
            prefix = self._prefix()
            for name in old:
                if self._target(name, prefix):
                    self._unlink(name)
            for name, path in new.items():
                self._link(name, prefix, path)

    def repair(self, devices: Mapping[str, str]) -> None:
        """Add the links to ``devices`` that are missing, and remove those that do not lead to a device of their number.

        ``devices`` are paths below the directory, by the names of their links. While they are those of the last call,
        only the names of the links are read.
        """
        with _logged_failures():
            names = {*link_names(self._host)}
            if devices and devices == self._repaired and devices.keys() <= names:
                return
            prefix = self._prefix()
            known = {name: self._target(name, prefix) for name in names}
            for name, target in known.items():
                if target and name not in devices and not self._is_right(name):
                    self._unlink(name)
            for name, path in devices.items():
                if known.get(name) != prefix + path:
                    self._link(name, prefix, path)
            self._repaired = devices

    def _prefix(self) -> str:
        """Return what the targets of own links begin with."""
        return f"{self._host.resolve(self._directory)}/"

    def _target(self, name: str, prefix: str) -> str:
        """Return what a link leads to; empty if it does not exist, or is another program's."""
        try:
            target = os.readlink(self._path(name))
        except OSError:
            return ""
        return target if target.startswith(prefix) else ""

    def _is_right(self, name: str) -> bool:
        """Return whether a link leads to a device of its number, as far as this process sees it."""
        with contextlib.suppress(OSError):
            return link_name(self._host.lstat(self._host.resolve(f"{DIRECTORY}/{name}")).st_rdev) == name
        return False

    def _link(self, name: str, prefix: str, path: str) -> None:
        try:
            os.symlink(prefix + path, self._path(name))
        except FileNotFoundError:  # a host without udev
            os.makedirs(self._host.process_path(DIRECTORY))
            os.symlink(prefix + path, self._path(name))
        except FileExistsError:
            own = self._target(name, prefix)
            if own != prefix + path and (own or not self._is_right(name)):  # it led to a device that is gone
                self._unlink(name)
                os.symlink(prefix + path, self._path(name))

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        return self._host.process_path(f"{DIRECTORY}/{name}")


class FoundDeviceLinks:
    """The links to binder devices that the plugin finds, in whichever directories. For the thread that scans."""

    def __init__(self, host: Host) -> None:
        """No links are known at first. The host is not accessed."""
        self._host = host
        self._linked: Mapping[str, BinderDevice] = {}

    def repair(self, devices: Iterable[BinderDevice]) -> None:
        """Repair the links to the devices of a scan, if links are missing or the devices have changed.

        A device that is bind-mounted alone gets no link: others have files in the same directory. Raises OSError.
        """
        by_name = {name: device for name, device in _by_link_name(devices).items() if device.directory}
        if by_name.keys() == self._linked.keys() and by_name.keys() <= {*link_names(self._host)}:
            return
        by_directory: dict[str, dict[str, str]] = {device.directory: {} for device in self._linked.values()}
        for name, device in by_name.items():
            file = posixpath.basename(self._host.resolve(device.path))
            by_directory.setdefault(device.directory, {})[name] = file
        for directory, files in by_directory.items():
            DeviceLinks(self._host, directory).repair(files)
        self._linked = by_name


def unlinked(host: Host, devices: Iterable[BinderDevice]) -> set[str]:
    """Return the names of the binderfs devices that have no link. Raises OSError."""
    linked = {*link_names(host)}
    return {device.name for name, device in _by_link_name(devices).items() if name not in linked}


def may_link(host: Host) -> bool:
    """Return whether this process may create links."""
    return os.access(host.process_path(DIRECTORY), os.W_OK)


def link_name(st_rdev: int) -> str:
    """Return the name of the link to the device with this number."""
    return f"{os.major(st_rdev)}:{os.minor(st_rdev)}"


def link_names(host: Host) -> Collection[str]:
    """Return the names of all links, of other programs too. Raises OSError."""
    try:
        return host.listdir(DIRECTORY)
    except FileNotFoundError:
        return ()


def _by_link_name(devices: Iterable[BinderDevice]) -> dict[str, BinderDevice]:
    """Return the devices that are in a binderfs, by the names of their links."""
    return {
        link_name(device.identity.st_rdev): device
        for device in devices
        if device.kind is Kind.BINDERFS and device.identity is not None
    }


def devices_below(directory: str, paths: Iterable[str]) -> dict[str, str]:
    """Return the ``paths`` below a directory that are devices, by the names of their links.

    ``directory`` is a path of this process.
    """
    found = {}
    for path in paths:
        try:
            status = os.lstat(f"{directory}/{path}")
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            found[link_name(status.st_rdev)] = path
    return found


@contextlib.contextmanager
def _logged_failures() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log(error.strerror or str(error))


@functools.cache
def _log(error: str) -> None:
    """Log why links cannot be written, once for each cause: the status reports the devices without a link."""
    LOG.warning("device links not written", extra={"path": DIRECTORY, "error": error})
