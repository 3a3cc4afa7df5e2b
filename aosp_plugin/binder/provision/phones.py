"""A binderfs for each phone: mounted, found again, replaced by a fresh one, and removed.

The mounts are the only record of which phones exist. Their source identifies those that the plugin made, with any
configuration. ``phone_mount`` handles one of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING

from aosp_plugin.binder.driver import detached
from aosp_plugin.binder.errors import BinderfsError, HostError
from aosp_plugin.binder.provision import phone_mount
from aosp_plugin.binder.provision.mount import exclusive, translated_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.binder.driver.mounts import Mount

LOG = logging.getLogger(__name__)

RETRY_AFTER = 60.0
"""Seconds after a failed mount without a further attempt. An attempt may itself cause a file event, and with it the
next scan, which would be the next attempt."""


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
            phone_mount.require_own_directory(directory)
        self._require_propagation(directory, phone_mount.read_mount_table())
        detached.check_mountable(directory)

    def _provision(self, directory: str, phones: Iterable[str], mounted: list[str]) -> None:
        """Mount what is missing, and append the IDs to ``mounted``."""
        with exclusive(directory):
            os.makedirs(directory, exist_ok=True)
            phone_mount.require_own_directory(directory)
            table = phone_mount.read_mount_table()
            self._require_propagation(directory, table)
            own = phone_mount.own_mounts(table)
            foreign = set(self.foreign)
            for phone in phones:
                path = f"{directory}/{phone}"
                self._obstacles.pop(phone, None)
                foreign.discard(phone)
                try:
                    device = self._mounted_device(path)
                    if device is not None and device not in own.get(path, ()):
                        raise phone_mount.foreign_mount(path)
                    if not self._is_complete(phone, path, device) and self._mount(phone, path):
                        mounted.append(phone)
                except phone_mount.ForeignMountError as error:
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
                phone_mount.fill(path, path)
        except HostError as error:
            LOG.warning("phone spoiled, mounting a fresh binderfs", extra={"device": phone, "error": str(error)})
            return False
        return True

    def _mounted_device(self, path: str) -> int | None:
        """Return the number (st_dev) of the file system mounted at ``path``; None if there is none, or no such file.

        Raises BinderfsError if nothing can be mounted there, ForeignMountError if only looking at it may hang.
        """
        if self._host.may_hang(path):
            raise phone_mount.foreign_mount(path)
        return phone_mount.mounted_device(path)

    def _mount(self, phone: str, path: str) -> bool:
        """Mount a binderfs on a directory without one, unless that has failed a short time ago. Return whether."""
        if self._failure is not None and self._clock() < self._not_before:
            return False
        try:
            with translated_errors(f"mount a binderfs on {path}"):
                self._devices[phone] = phone_mount.attach_new(path)
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
                phone_mount.require_own_mount(path, device)
            self._devices[phone] = phone_mount.attach_new(path)

    def _remove(self, directory: str, phone: str) -> None:
        path = f"{directory}/{phone}"
        with exclusive(directory):
            device = self._mounted_device(path)
            if device is not None:
                phone_mount.require_own_mount(path, device)
            phone_mount.unmount_all(path)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(path)
            self._devices.pop(phone, None)
            self._obstacles.pop(phone, None)

    def _require_propagation(self, directory: str, table: Iterable[Mount]) -> None:
        in_container = self._host.process_path("/") != "/"
        phone_mount.require_propagation(directory, table, in_container=in_container)
