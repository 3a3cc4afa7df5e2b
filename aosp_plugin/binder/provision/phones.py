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

from aosp_plugin.binder.devices.phones import PHONE_BINDER_DEVICES, phone_number
from aosp_plugin.binder.discovery.scanner import DeviceReader
from aosp_plugin.binder.driver import binderfs, detached
from aosp_plugin.binder.driver.host import Driver
from aosp_plugin.binder.errors import BinderfsError, HostError
from aosp_plugin.binder.provision import phone_mount
from aosp_plugin.binder.provision.mount import exclusive, translated_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.binder.driver.mounts import Mount

LOG = logging.getLogger(__name__)

RETRY_AFTER = 60.0
"""Seconds after a failed mount without a further attempt. An attempt may itself cause a file event, and with it the
next scan, which would be the next attempt."""


class PhoneProvisioner:
    """The binderfs mounts of phones below one directory of the host. For one worker thread.

    ``provision``, ``replace`` and ``remove`` keep phones that exist all the time; ``mount`` and ``unmount`` are for
    those of ResourceClaims, one by one, at a cost that does not depend on how many there are.
    """

    def __init__(
        self,
        directory: str,
        host: Host,
        clock: Callable[[], float] = time.monotonic,
        *,
        source: str = phone_mount.SOURCE,
    ) -> None:
        """``directory`` is the host's. The host is not accessed.

        ``source`` is that of the mounts. Those of the other API are the plugin's as well, and are left as they are.
        """
        self._host_directory = directory
        self._host = host
        self._clock = clock
        self._source = source
        self._devices: dict[str, int] = {}  # st_dev of the mounts that are known to be the plugin's
        self._spoiled: set[str] = set()
        self._refusal: HostError | None = None  # why nothing may be mounted
        self._failure: HostError | None = None
        self._not_before = 0.0
        self.foreign: frozenset[str] = frozenset()
        """Phones in whose place another file system, or a file, is. Replaced by a single assignment."""
        self.other_api: frozenset[str] = frozenset()
        """Phones that were mounted for pods that get them through the other API. Replaced by a single assignment."""
        self.obstacles: dict[str, HostError] = {}
        """Why single phones, the foreign ones among them, could not be checked, mounted or removed. For the worker
        thread."""

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

    def is_own(self, phone: str) -> bool:
        """Return whether the plugin's binderfs was mounted for ``phone`` after the last call that concerned it."""
        return phone in self._devices

    def check(self) -> None:
        """Check without effect that phones could be mounted. Raises HostError."""
        with self._path() as directory:
            with contextlib.suppress(FileNotFoundError):
                phone_mount.require_own_directory(directory)
            self._require_propagation(directory, phone_mount.read_mount_table())
            detached.check_mountable(directory)

    def survey(self) -> set[str]:
        """Return the phones that have a binderfs, and set ``foreign`` and ``other_api``. Changes nothing.

        No right is required: the mount table has the source of each mount. Raises HostError.
        """
        foreign: set[str] = set()
        self._devices = {}
        with self._path() as directory:
            own = phone_mount.own_mounts(phone_mount.read_mount_table())
            for phone in _phones_in(directory):
                try:
                    device = self._own_device(f"{directory}/{phone}", own)
                except phone_mount.ForeignMountError:
                    foreign.add(phone)
                    continue
                if device is not None:
                    self._devices[phone] = device
            self.other_api = frozenset(
                phone for phone, device in self._devices.items() if own[f"{directory}/{phone}"][device] != self._source
            )
        self.foreign = frozenset(foreign)
        return {*self._devices}

    def provision(self, phones: Collection[str]) -> list[str]:
        """Mount a binderfs for each of ``phones`` that has none or a spoiled one; restore devices and modes in others.

        Returns the IDs of the phones that were mounted. ``problem`` has what failed; what was mounted stays. A phone
        whose directory is in use does not affect the others. If a mount fails, no other one is attempted within
        ``RETRY_AFTER`` seconds. If nothing may be mounted in the directory, the phones that are mounted are checked
        nevertheless: another file system in place of one must never reach a container. Raises HostError if the
        directory of the phones cannot be accessed.
        """
        mounted: list[str] = []
        if not phones and self.failure is None:
            return mounted
        with self._path() as directory, exclusive(directory):
            if not os.path.lexists(directory) and not self._create(directory):
                return mounted
            table = phone_mount.read_mount_table()
            own = phone_mount.own_mounts(table)
            self._refusal = self._why_refused(directory, table)
            all_mounted = True
            foreign, other_api = set(self.foreign.difference(phones)), set(self.other_api.difference(phones))
            for phone in phones:
                path = f"{directory}/{phone}"
                self._forget(phone)
                try:
                    device = self._own_device(path, own)
                    if device is not None and own[path][device] != self._source:
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
        return mounted

    def replace(self, phone: str) -> None:
        """Mount a fresh binderfs in place of that of ``phone``. Containers and processes keep the old one.

        After a failure before the old one is unmounted, it is unchanged. If the process is killed between that and the
        attachment of the new one, the phone has none until the next ``provision``. Raises HostError.
        """
        with self._path() as directory, exclusive(directory):
            if isinstance(self._refusal, phone_mount.PropagationError):
                raise self._refusal
            self._require_own(phone, f"{directory}/{phone}")
            self._attach(phone, f"{directory}/{phone}")
            self.other_api -= {phone}

    def remove(self, phones: Iterable[str], limit: int) -> list[str]:
        """Unmount the binderfs of up to ``limit`` of ``phones``, and remove its directory. Containers keep it.

        Returns the IDs of those that were removed; ``problem`` has why others were not. Raises HostError.
        """
        removed: list[str] = []
        with self._path() as directory, exclusive(directory):
            own = phone_mount.own_mounts(phone_mount.read_mount_table())
            for phone in phones:
                path = f"{directory}/{phone}"
                self._forget(phone)
                try:
                    with translated_errors(f"remove {path}"):
                        phone_mount.remove(path, mounted=self._own_device(path, own) is not None)
                except HostError as error:
                    self.obstacles[phone] = error
                else:
                    removed.append(phone)
                    if len(removed) == limit:
                        break
        return removed

    def mount(self, phone: str) -> bool:
        """Mount a binderfs for ``phone``, unless it has one. Return whether it was mounted. Raises HostError."""
        with self._path() as directory, exclusive(directory):
            path = f"{directory}/{phone}"
            if (device := self._require_own(phone, path)) is not None:
                self._devices[phone] = device
                return False
            if not os.path.lexists(directory):
                detached.check_mountable(directory)
                os.makedirs(directory)
            self._attach(phone, path)
            return True

    def unmount(self, phone: str) -> None:
        """Unmount the binderfs of ``phone``, and remove its directory. Containers keep it. Idempotent.

        What is in its place instead stays. Raises HostError.
        """
        with self._path() as directory, exclusive(directory):
            path = f"{directory}/{phone}"
            try:
                phone_mount.remove(path, mounted=self._require_own(phone, path) is not None)
            except phone_mount.ForeignMountError:
                self.foreign |= {phone}
            self._forget(phone)
            self.other_api -= {phone}

    def mounted(self) -> list[str]:
        """Return the phones that may have a binderfs: those with a directory. Raises HostError."""
        with self._path() as directory:
            return _phones_in(directory)

    def read(self, phone: str) -> Sequence[BinderDevice]:
        """Read the binder devices of a phone; none if it was not mounted by the last call that concerned it.

        Those on another file system have another kind than BINDERFS. Raises HostError.
        """
        if phone not in self._devices:
            return ()
        with self._path():
            driver = Driver(frozenset({self._devices[phone]}))
            reader = DeviceReader(self._host, driver, self._host_directory)
            return [*reader.read_all(f"{phone}/{name}" for name in PHONE_BINDER_DEVICES).values()]

    def driver(self) -> str:
        """Return the implementation of the driver, c or rust; empty if unknown. Raises HostError.

        A binderfs that is not attached to any directory is created for it.
        """
        with self._path(), detached.create(self._host_directory, self._source) as mount:
            return binderfs.implementation(f"/proc/self/fd/{mount}")

    @contextlib.contextmanager
    def _path(self) -> Iterator[str]:
        """Yield the directory as a path of this process without links; raise HostError instead of OSError."""
        with translated_errors(f"provision phones in {self._host_directory}"):
            yield self._host.process_path(self._host.resolve(self._host_directory))

    def _forget(self, phone: str) -> None:
        self._devices.pop(phone, None)
        self.obstacles.pop(phone, None)

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

    def _require_propagation(self, directory: str, table: Iterable[Mount]) -> None:
        in_container = self._host.process_path("/") != "/"
        phone_mount.require_propagation(directory, table, in_container=in_container)

    def _own_device(self, path: str, own: Mapping[str, Collection[int]]) -> int | None:
        """Return the number (st_dev) of the plugin's binderfs at ``path``; None if there is none. Raises HostError."""
        with translated_errors(f"read {path}"):
            device = phone_mount.mounted_device(path)
        if device is not None and device not in own.get(path, ()):
            raise phone_mount.foreign_mount(path)
        return device

    def _require_own(self, phone: str, path: str) -> int | None:
        """Return the number (st_dev) of the plugin's binderfs of a phone; None if there is none. Raises HostError.

        The mount table has a line for each phone, so it is read only if the mount is not a known one.
        """
        device = phone_mount.mounted_device(path)
        if device in {None, self._devices.get(phone)}:
            return device
        return self._own_device(path, phone_mount.own_mounts(phone_mount.read_mount_table()))

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
                self._attach(phone, path)
        except HostError as error:
            self._set_failure(error)
            return False
        self._failure = None
        self._spoiled.discard(phone)
        return True

    def _attach(self, phone: str, path: str) -> None:
        self._devices[phone] = phone_mount.attach_new(path, self._source)


def _phones_in(directory: str) -> list[str]:
    """Return the phones that have a directory."""
    try:
        return [name for name in os.listdir(directory) if phone_number(name) is not None]
    except FileNotFoundError:
        return []
