"""A binderfs for each phone: mounted, found again, replaced by a fresh one, and removed.

The mounts are the only record of which phones exist. Their source identifies those that the plugin made, with any
configuration. A binderfs is filled before it is attached (``driver.detached``), so that a directory has either a
complete binderfs or none, whenever the process is killed; the next call makes what is missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices.phones import PHONE_BINDER_DEVICES, phone_number
from aosp_plugin.binder.driver import binderfs, detached, mounts
from aosp_plugin.binder.errors import BinderfsError, HostError
from aosp_plugin.binder.provision.mount import MODE, exclusive, set_mode, translated_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.binder.driver.mounts import Mount

LOG = logging.getLogger(__name__)

SOURCE = "aosp-phone"
"""The source of the mounts. A binderfs with another source is not the plugin's: it may have ``stats=global``, which
shows the transactions of all phones."""

RETRY_AFTER = 60.0
"""Seconds after a failed mount without a further attempt. An attempt may itself cause a file event, and with it the
next scan, which would be the next attempt."""


class ForeignMountError(BinderfsError):
    """Another file system is mounted in place of the plugin's."""


class PhoneProvisioner:
    """Keeps the binderfs mounts of phones in place below one directory of the host. For one worker thread."""

    def __init__(self, directory: str, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        """``directory`` is the host's. The host is not accessed."""
        self._host_directory = directory
        self._host = host
        self._clock = clock
        self._devices: dict[str, int] = {}  # st_dev of the mounts that are known to be the plugin's
        self._obstacles: dict[str, HostError] = {}
        self._failure: HostError | None = None
        self._not_before = 0.0
        self.foreign: frozenset[str] = frozenset()
        """Phones in whose place another file system is mounted. Replaced by a single assignment."""

    def provision(self, phones: Iterable[str]) -> list[str]:
        """Mount a binderfs for each of ``phones`` that has none or a spoiled one; restore devices and modes in others.

        Returns the IDs of the phones that were mounted. ``problem`` has what failed; what was mounted stays. A phone
        whose directory is in use does not affect the others. If a mount fails, no other one is attempted within
        ``RETRY_AFTER`` seconds. Raises HostError if the directory of the phones is not usable.
        """
        mounted: list[str] = []
        with self._errors():
            self._host.call(lambda directory: self._provision(directory, phones, mounted), self._directory())
        return mounted

    @property
    def problem(self) -> str:
        """Why a phone could not be mounted, as of the last attempt, and the number of further ones; empty if none."""
        errors = [*([self._failure] if self._failure else []), *self._obstacles.values()]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"{errors[0]}{more}" if errors else ""

    def replace(self, phone: str) -> None:
        """Mount a fresh binderfs in place of that of ``phone``. Containers and processes keep the old one.

        After a failure before the old one is unmounted, it is unchanged. If the process is killed between that and the
        attachment of the new one, the phone has none until the next ``provision``. Raises HostError.
        """
        with self._errors():
            self._host.call(lambda directory: self._replace(directory, phone), self._directory())

    def remove(self, phone: str) -> None:
        """Unmount the binderfs of ``phone``, and remove its directory. Containers keep it. Raises HostError."""
        with self._errors():
            self._host.call(lambda directory: self._remove(directory, phone), self._directory())

    def check(self) -> None:
        """Check without effect that phones could be mounted. Raises HostError."""
        with self._errors():
            self._host.call(self._check, self._directory())

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return translated_errors(f"provision phones in {self._host_directory}")

    def _directory(self) -> str:
        return self._host.process_path(self._host.resolve(self._host_directory))

    def _check(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            _require_own_directory(directory)
        self._require_propagation(directory, _mount_table())
        detached.check_mountable(directory)

    def _provision(self, directory: str, phones: Iterable[str], mounted: list[str]) -> None:
        """Mount what is missing, and append the IDs to ``mounted``."""
        with exclusive(directory):
            os.makedirs(directory, exist_ok=True)
            _require_own_directory(directory)
            table = _mount_table()
            self._require_propagation(directory, table)
            own = _own_mounts(table)
            foreign = set(self.foreign)
            for phone in phones:
                path = f"{directory}/{phone}"
                self._obstacles.pop(phone, None)
                foreign.discard(phone)
                try:
                    device = self._mounted_device(path)
                    if device is not None and device not in own.get(path, ()):
                        raise _foreign(path)
                    if not self._is_complete(phone, path, device) and self._mount(phone, path):
                        mounted.append(phone)
                except ForeignMountError as error:
                    foreign.add(phone)
                    self._obstacles[phone] = error
                except BinderfsError as error:
                    self._obstacles[phone] = error
            self.foreign = frozenset(foreign)

    def _is_complete(self, phone: str, path: str, device: int | None) -> bool:
        """Restore a mounted phone; return whether it can be. A container with CAP_SYS_ADMIN may have lowered max=."""
        if device is None:
            return False
        self._devices[phone] = device
        try:
            with translated_errors(f"restore {path}"):
                _fill(path, path)
        except HostError as error:
            LOG.warning("phone spoiled, mounting a fresh binderfs", extra={"device": phone, "error": str(error)})
            return False
        return True

    def _mounted_device(self, path: str) -> int | None:
        """Return the number (st_dev) of the file system mounted at ``path``; None if there is none, or no such file.

        Raises BinderfsError if nothing can be mounted there, ForeignMountError if only looking at it may hang.
        """
        if self._host.may_hang(path):
            raise _foreign(path)
        return _mounted_device(path)

    def _mount(self, phone: str, path: str) -> bool:
        """Mount a binderfs on a directory without one, unless that has failed a short time ago. Return whether."""
        if self._failure is not None and self._clock() < self._not_before:
            return False
        try:
            with translated_errors(f"mount a binderfs on {path}"):
                self._devices[phone] = _attach_new(path)
        except HostError as error:
            self._failure = error.with_traceback(None)
            self._not_before = self._clock() + RETRY_AFTER
            return False
        self._failure = None
        return True

    def _replace(self, directory: str, phone: str) -> None:
        path = f"{directory}/{phone}"
        with exclusive(directory):
            device = self._mounted_device(path)
            # The mount table has a line for each phone, so it is read only if the mount is not a known one.
            if device not in {None, self._devices.get(phone)}:
                _require_own_mount(path, device)
            self._devices[phone] = _attach_new(path)

    def _remove(self, directory: str, phone: str) -> None:
        path = f"{directory}/{phone}"
        with exclusive(directory):
            device = self._mounted_device(path)
            if device is not None:
                _require_own_mount(path, device)
            _unmount_all(path)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(path)
            self._devices.pop(phone, None)
            self._obstacles.pop(phone, None)

    def _require_propagation(self, directory: str, table: Iterable[Mount]) -> None:
        """Require that mounts in ``directory`` appear on the host, if it is below another root than the host's."""
        if self._host.process_path("/") == "/":
            return
        around = [mount for mount in table if f"{directory}/".startswith(f"{mount.directory.rstrip('/')}/")]
        if around and not max(around, key=lambda mount: len(mount.directory)).shared:
            raise BinderfsError(
                f"mounts in {self._host_directory} do not propagate to the host: its volume requires "
                "mountPropagation: Bidirectional, which requires a privileged container"
            )


def _require_own_directory(directory: str) -> None:
    """Require that the directory has nothing but phones, before anything is mounted in it. Raises BinderfsError."""
    others = [name for name in os.listdir(directory) if phone_number(name) is None]
    if others:
        raise BinderfsError(
            f"{directory} is not empty: it contains {min(others)!r}: choose another phones.directory for phones alone"
        )


def _mount_table() -> tuple[Mount, ...]:
    with open(mounts.MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
        return mounts.parse(file.read())


def _own_mounts(table: Iterable[Mount]) -> dict[str, set[int]]:
    """Return the numbers (st_dev) of the plugin's binderfs mounts by directory."""
    own: dict[str, set[int]] = {}
    for mount in table:
        if (mount.type, mount.source) == (mounts.BINDERFS, SOURCE):
            own.setdefault(mount.directory, set()).add(mount.device)
    return own


def _require_own_mount(path: str, device: int | None) -> None:
    """Raise ForeignMountError if the file system mounted at ``path`` is not the plugin's."""
    if device not in _own_mounts(_mount_table()).get(path, ()):
        raise _foreign(path)


def _mounted_device(path: str) -> int | None:
    """Return the number (st_dev) of the file system mounted on a directory; None if there is none, or no directory.

    Raises BinderfsError if nothing can be mounted there.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise BinderfsError(f"{path} is not a directory: remove it, or choose another phones.directory")
    if status.st_dev != os.lstat(os.path.dirname(path)).st_dev:
        return status.st_dev
    if os.listdir(path):
        raise BinderfsError(f"{path} is not empty: remove its files, or choose another phones.directory")
    return None


def _attach_new(path: str) -> int:
    """Mount a new binderfs on a directory in place of those that are mounted there. Return its number (st_dev).

    Raises BinderfsError. The directory is created if it does not exist, and removed if the mount fails.
    """
    created = not os.path.lexists(path)
    if created:
        os.mkdir(path)
    try:
        with detached.create(path, SOURCE) as mount:
            root = f"/proc/self/fd/{mount}"
            _fill(root, path)
            _unmount_all(path)
            detached.attach(mount, path)
            return os.stat(root).st_dev
    except BaseException:
        if created:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        raise


def _fill(root: str, path: str) -> None:
    """Give a binderfs exactly the binder devices of a phone, with the mode ``MODE``. ``path`` is for errors.

    The kernel creates those of its parameter ``devices=`` at each mount (drivers/android/binderfs.c
    ``binderfs_fill_super``): usually these three, but CONFIG_ANDROID_BINDER_DEVICES may be empty or have other names.
    """
    try:
        existing = binderfs.devices_in(root)
        for name in existing:
            if name not in PHONE_BINDER_DEVICES:
                binderfs.remove_device(root, name)
        for name in PHONE_BINDER_DEVICES:
            if name not in existing:
                binderfs.add_device(root, name)
            set_mode(f"{root}/{name}", MODE)
    except BinderfsError as error:
        raise type(error)(str(error).replace(root, path)) from error


def _unmount_all(path: str) -> None:
    parent = os.lstat(os.path.dirname(path)).st_dev
    with contextlib.suppress(FileNotFoundError):
        while os.lstat(path).st_dev != parent:
            binderfs.unmount(path, lazy=True)


def _foreign(path: str) -> ForeignMountError:
    return ForeignMountError(f"{path}: another file system is mounted in place of the phone's binderfs: unmount it")
