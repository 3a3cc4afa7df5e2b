"""A tmpfs in place of binderfs, for phones on machines without binder: the mounts and their system calls are real.

Only what binderfs itself does is replaced: the type of the file system, the devices of a new mount, and BINDER_CTL_ADD,
instead of which a null device is created, with the names and numbers of ``binder_driver``. The links of /dev/char are
elsewhere. Requires root.
"""

import collections
import os
import stat
import subprocess
from pathlib import Path
from typing import Never

import pytest

from aosp_plugin.binder.devices.sets import PHONE_BINDER_DEVICES
from aosp_plugin.binder.driver import binderfs, host
from aosp_plugin.binder.driver.binderfs import NotPermittedError
from aosp_plugin.binder.driver.host import read_mounts
from aosp_plugin.binder.provision import device_links, phone_mount
from tests.binder_driver import CONTROL, MAJOR, Numbers, check_new

_NULL = os.makedev(1, 3)


class Mounts:
    """The directory of phones, whose mounts end with the test."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the functions until the test ends."""
        self.path = path
        self.kernel_devices: tuple[str, ...] = ()
        """The binder devices that each mount creates (``devices=`` of the driver)."""
        self.links = path.parent / "char"
        """In place of /dev/char."""
        self._minors: Numbers | None = None
        self._device_names = binderfs.device_names
        monkeypatch.setattr(device_links, "DIRECTORY", str(self.links))
        for module in (host, binderfs, phone_mount):
            monkeypatch.setattr(module, "BINDERFS", "tmpfs")
        monkeypatch.setattr(binderfs, "add_device", self.add_device)
        monkeypatch.setattr(binderfs, "device_names", self.device_names)

    def number_devices(self) -> None:
        """Give each new device a number of its own, with which it does not open. No number is freed."""
        self._minors = Numbers()

    def linked(self) -> dict[str, str]:
        """Return the number of the device that each link of /dev/char leads to, or why it leads to none."""
        return {path.name: _number_at(path) for path in self.links.glob("*")}

    def expected_links(self, *phones: str) -> dict[str, str]:
        """Return what ``linked`` returns if exactly these phones have links to all their devices."""
        devices = (self.path / phone / name for phone in phones for name in PHONE_BINDER_DEVICES)
        return {number: number for number in map(_number_at, devices)}

    def hide_links(self) -> None:
        """Mount an empty file system in place of /dev/char that is read-only."""
        _run("mount", "-t", "tmpfs", "-o", "ro", "links", self.links)

    def device_names(self, directory: str) -> list[str]:
        """List the devices of a mount."""
        self._complete(directory)
        return self._device_names(directory)

    def add_device(self, directory: str, name: str) -> int:
        """Create a device in a mount."""
        self._complete(directory)
        with binderfs.kernel_errors(binderfs.Step.ADD, f"{directory}/{name}"):
            check_new(name, os.listdir(directory))
            return self._create(directory, name)

    def _complete(self, directory: str) -> None:
        """Create the devices that the kernel creates, if the mount is new."""
        if not os.path.lexists(f"{directory}/{CONTROL}"):
            for name in (CONTROL, *self.kernel_devices):
                self._create(directory, name)

    def _create(self, directory: str | Path, name: str) -> int:
        """Create a device with the mode that the kernel gives."""
        number = _NULL if self._minors is None else os.makedev(MAJOR, self._minors.take())
        os.mknod(f"{directory}/{name}", stat.S_IFCHR | 0o600, number)
        return number

    def mounted(self) -> dict[str, int]:
        """Return the number of mounts on each phone's directory."""
        table = read_mounts()
        parents = [os.path.split(mount.directory) for mount in table]
        return dict(collections.Counter(name for parent, name in parents if parent == str(self.path)))

    def mount_other(self, name: str, *, shared: bool | None = None) -> None:
        """Mount another file system on a directory."""
        path = os.path.normpath(self.path / name)
        _run("mount", "-t", "ramfs", "other", path)
        if shared is not None:
            _run("mount", "--make-private", path)

    def mount_tmpfs_with(self, name: str, *devices: str) -> None:
        """Mount another tmpfs on a directory, and create devices in it."""
        _run("mount", "-t", "tmpfs", "other", self.path / name)
        for device in (CONTROL, *devices):
            self._create(self.path / name, device)

    def refuse_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Refuse every attempt of this process to mount or unmount from now on."""

        def refuse(*arguments: object, **_keys: object) -> Never:
            raise NotPermittedError(f"cannot mount {arguments}")

        names = ((phone_mount, "attach_new"), (phone_mount, "unmount_all"), (phone_mount, "fill"))
        for module, name in (*names, (binderfs, "check_mountable")):
            monkeypatch.setattr(module, name, refuse)

    def share(self, name: str) -> None:
        """Let mounts below a mounted directory propagate."""
        _run("mount", "--make-shared", os.path.normpath(self.path / name))

    def make_private(self, name: str) -> None:
        """Let mounts below a mounted directory no longer propagate."""
        _run("mount", "--make-private", os.path.normpath(self.path / name))

    def bind(self, name: str, place: str) -> None:
        """Mount the file system of one directory on another one as well."""
        _run("mount", "--bind", self.path / name, self.path / place)

    def make_read_only(self, name: str) -> None:
        """Make the whole file system that is mounted on a directory read-only."""
        _run("mount", "-o", "remount,ro", self.path / name)

    def unmount(self, name: str) -> None:
        """Unmount what is mounted on a directory."""
        _run("umount", "--lazy", os.path.normpath(self.path / name))

    def close(self) -> None:
        """Unmount everything at and below the directory's parent."""
        table = read_mounts()
        below = [mount.directory for mount in table if Path(mount.directory).is_relative_to(self.path.parent)]
        for directory in sorted(below, key=len, reverse=True):
            _run("umount", "--lazy", directory)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - a fixed command


def _number_at(path: Path) -> str:
    try:
        number = path.stat().st_rdev
    except OSError as error:
        return str(error.strerror)
    return f"{os.major(number)}:{os.minor(number)}"
