"""A binderfs for each phone: mounted, found again, replaced by a fresh one, and removed.

The mounts are the only record of which phones exist. Their source identifies those that the plugin made, with any
configuration. ``mounted_phones`` reads them, ``phone_mount`` handles one of them.
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
from aosp_plugin.binder.provision.mounted_phones import MountedPhones

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.binder.driver.mounts import Mount

LOG = logging.getLogger(__name__)

RETRY_AFTER = 60.0
"""Seconds after a failed mount without a further attempt. An attempt may itself cause a file event, and with it the
next scan, which would be the next attempt."""


class PhoneProvisioner(MountedPhones):
    """Keeps the binderfs mounts of phones in place below one directory of the host. For one worker thread."""

    def __init__(self, directory: str, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        """``directory`` is the host's. The host is not accessed."""
        super().__init__(directory, host)
        self._clock = clock
        self._spoiled: set[str] = set()
        self._refusal: HostError | None = None  # why nothing may be mounted
        self._failure: HostError | None = None
        self._not_before = 0.0
        self.obstacles: dict[str, HostError] = {}
        """Why single phones, the foreign ones among them, could not be checked, mounted or removed. For the worker
        thread."""

    def provision(self, phones: Collection[str]) -> list[str]:
        """Mount a binderfs for each of ``phones`` that has none or a spoiled one; restore devices and modes in others.

        ``phones`` are all, or those that may lack something, and those with ``obstacles``.

        Returns the IDs of the phones that were mounted. ``problem`` has what failed; what was mounted stays. A phone
        whose directory is in use does not affect the others. If a mount fails, no other one is attempted within
        ``RETRY_AFTER`` seconds. Raises HostError if the directory of the phones cannot be accessed.
        """
        mounted: list[str] = []
        if not phones and self._refusal is None and self._failure is None:
            return mounted
        with self._errors():
            self._provision(self._directory(), phones, mounted)
        return mounted

    @property
    def problem(self) -> str:
        """Why a phone could not be mounted, as of the last attempt, and the number of further ones; empty if none."""
        errors = [*filter(None, [self._refusal, self._failure]), *self.obstacles.values()]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"{errors[0]}{more}" if errors else ""

    @property
    def failure(self) -> HostError | None:
        """Why the last attempt could not mount any further phone; None if it could."""
        return self._refusal or self._failure

    def replace(self, phone: str) -> None:
        """Mount a fresh binderfs in place of that of ``phone``. Containers and processes keep the old one.

        After a failure before the old one is unmounted, it is unchanged. If the process is killed between that and the
        attachment of the new one, the phone has none until the next ``provision``. Raises HostError.
        """
        with self._errors():
            self._replace(self._directory(), phone)

    def remove(self, phones: Iterable[str], limit: int) -> list[str]:
        """Unmount the binderfs of up to ``limit`` of ``phones``, and remove its directory. Containers keep it.

        Returns the IDs of those that were removed; ``problem`` has why others were not. Raises HostError.
        """
        with self._errors():
            return self._remove(self._directory(), phones, limit)

    def check(self) -> None:
        """Check without effect that phones could be mounted. Raises HostError."""
        with self._errors():
            self._check(self._directory())

    def _check(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            phone_mount.require_own_directory(directory)
        self._require_propagation(directory, phone_mount.read_mount_table())
        detached.check_mountable(directory)

    def _provision(self, directory: str, phones: Collection[str], mounted: list[str]) -> None:
        """Mount what is missing, and append the IDs to ``mounted``.

        If nothing may be mounted in the directory, the phones that are mounted are checked nevertheless: another file
        system in place of one must never reach a container.
        """
        with exclusive(directory):
            if not os.path.lexists(directory) and not self._create(directory):
                return
            table = phone_mount.read_mount_table()
            own = phone_mount.own_mounts(table)
            self._refusal = self._why_refused(directory, table)
            foreign, other_api = set(self.foreign), set(self.other_api)
            all_mounted = True
            for phone in phones:
                path = f"{directory}/{phone}"
                self._devices.pop(phone, None)
                self.obstacles.pop(phone, None)
                foreign.discard(phone)
                other_api.discard(phone)
                try:
                    device = self._own_device(path, own)
                    if device is not None and own[path][device] != self.source:
                        other_api.add(phone)
                    if self._is_complete(phone, path, device):
                        continue
                    if self._refusal is None and self._mount(phone, path):
                        mounted.append(phone)
                    else:
                        all_mounted = False
                except HostError as error:
                    self.obstacles[phone] = error
                    if isinstance(error, phone_mount.ForeignMountError):
                        foreign.add(phone)
            self.foreign, self.other_api = frozenset(foreign), frozenset(other_api)
            if all_mounted:  # by another process of the plugin, if not here
                self._failure = None

    def _create(self, directory: str) -> bool:
        """Create the directory of the phones. Return False if nothing can be mounted in it; then nothing is left."""
        if self._is_too_early():
            return False
        try:
            detached.check_mountable(directory)
        except BinderfsError as error:
            self._set_failure(error)
            return False
        os.makedirs(directory)
        return True

    def _is_too_early(self) -> bool:
        """Return whether a mount has failed a short time ago."""
        return self._failure is not None and self._clock() < self._not_before

    def _set_failure(self, error: HostError) -> None:
        self._failure = error.with_traceback(None)
        self._not_before = self._clock() + RETRY_AFTER

    def _why_refused(self, directory: str, table: Iterable[Mount]) -> HostError | None:
        """Return why nothing may be mounted in the directory of the phones; None if it may."""
        try:
            phone_mount.require_own_directory(directory)
            self._require_propagation(directory, table)
        except HostError as error:
            return error.with_traceback(None)
        return None

    def _is_complete(self, phone: str, path: str, device: int | None) -> bool:
        """Restore a mounted phone; return whether it can be. A container with CAP_SYS_ADMIN may have lowered max=.

        Raises HostError if descriptors or memory are exhausted, which is not the phone's fault.
        """
        if device is None:
            return False
        self._devices[phone] = device
        try:
            with translated_errors(f"restore {path}"):
                phone_mount.fill(path, path)
        except HostError as error:
            if phone_mount.is_transient(error):
                raise
            if phone not in self._spoiled:
                LOG.warning("phone spoiled, mounting a fresh binderfs", extra={"device": phone, "error": str(error)})
            self._spoiled.add(phone)
            return False
        self._spoiled.discard(phone)
        return True

    def _mount(self, phone: str, path: str) -> bool:
        """Mount a binderfs on a directory without one, unless that has failed a short time ago. Return whether."""
        if self._is_too_early():
            return False
        try:
            with translated_errors(f"mount a binderfs on {path}"):
                self._devices[phone] = phone_mount.attach_new(path, self.source)
        except HostError as error:
            self._set_failure(error)
            return False
        self._failure = None
        self._spoiled.discard(phone)
        return True

    def _replace(self, directory: str, phone: str) -> None:
        path = f"{directory}/{phone}"
        with exclusive(directory):
            if isinstance(self._refusal, phone_mount.PropagationError):
                raise self._refusal
            self._require_own(phone, path)
            self._devices[phone] = phone_mount.attach_new(path, self.source)
            self.other_api -= {phone}

    def _require_own(self, phone: str, path: str) -> int | None:
        """Return the number (st_dev) of the plugin's binderfs of a phone; None if there is none. Raises HostError.

        The mount table has a line for each phone, so it is read only if the mount is not a known one.
        """
        device = phone_mount.mounted_device(path)
        if device not in {None, self._devices.get(phone)}:
            phone_mount.require_own_mount(path, device)
        return device

    def _remove(self, directory: str, phones: Iterable[str], limit: int) -> list[str]:
        removed: list[str] = []
        with exclusive(directory):
            own = phone_mount.own_mounts(phone_mount.read_mount_table())
            for phone in phones:
                path = f"{directory}/{phone}"
                self._devices.pop(phone, None)
                self.obstacles.pop(phone, None)
                try:
                    with translated_errors(f"remove {path}"):
                        if self._own_device(path, own) is not None:
                            phone_mount.unmount_all(path)
                        with contextlib.suppress(FileNotFoundError):
                            os.rmdir(path)
                except HostError as error:
                    self.obstacles[phone] = error
                else:
                    removed.append(phone)
                    if len(removed) == limit:
                        break
        return removed

    def _require_propagation(self, directory: str, table: Iterable[Mount]) -> None:
        in_container = self._host.process_path("/") != "/"
        phone_mount.require_propagation(directory, table, in_container=in_container)
