"""A binderfs for each phone: mounted, found again, replaced by a fresh one, and removed.

The mounts are the only record of which phones exist. Their source identifies those that the plugin made, with any
configuration. ``phone_mount`` handles one of them.
"""

import contextlib
import logging
import math
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from aosp_plugin.binder.devices.scanner import BinderDevice, DeviceReader
from aosp_plugin.binder.devices.sets import PHONE_BINDER_DEVICES, binder_devices_of, phone_number
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Driver, Host, HostError, read_mounts
from aosp_plugin.binder.provision import phone_mount
from aosp_plugin.binder.provision.device_links import DeviceLinks, devices_below
from aosp_plugin.binder.provision.phone_mount import phones_below, translated_errors

LOG = logging.getLogger(__name__)


class FoundMount(NamedTuple):
    """The binderfs of a phone that an earlier call or another process has mounted."""

    identity: tuple[int, int]
    """st_dev and st_mtime in nanoseconds of its root: the kernel gives the next mount the same st_dev."""
    since: float
    """When it was found first, in seconds of ``time.monotonic``."""
    is_of_other_api: bool
    """Whether it was mounted for pods of the other API."""


class PhoneProvisioner:
    """The binderfs mounts of phones below one directory of the host. For one worker thread.

    ``provision``, ``replace`` and ``remove`` keep phones that exist all the time; ``mount`` and ``unmount`` are for
    those of ResourceClaims, one by one, at a cost that does not depend on how many there are.
    """

    def __init__(self, directory: str, host: Host, *, source: str = phone_mount.SOURCE) -> None:
        """``directory`` is a path of the host, which is not accessed.

        ``source`` is the source of the mounts. The plugin's mounts for the other API have another one, and stay.
        """
        self._host_directory = directory
        self._host = host
        self._source = source
        self._links = DeviceLinks(host)
        self._own: Mapping[str, Mapping[int, str]] | None = None  # the plugin's mounts, once this call has read them
        self.file_systems: dict[str, int] = {}
        """st_dev of the binderfs that are known to be the plugin's, by phone."""
        self.mount_error: HostError | None = None
        """The error after which the last call of ``provision`` mounted no further phone; None without one."""
        self.foreign: frozenset[str] = frozenset()
        """Phones with another file system, or a file, in their places."""
        self.found: dict[str, FoundMount] = {}
        """The mounts that this process has found, and has not made just now, by phone."""
        self.phone_errors: dict[str, HostError] = {}
        """The errors of phones, also foreign ones, that could not be checked, mounted or removed."""

    @property
    def error_text(self) -> str:
        """The first error of the last attempt, and the number of further errors; empty if there is none."""
        errors = [*filter(None, [self.mount_error]), *self.phone_errors.values()]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"{errors[0]}{more}" if errors else ""

    @property
    def other_api(self) -> dict[str, FoundMount]:
        """The mounts of phones that were mounted for pods of the other API."""
        return {phone: mount for phone, mount in self.found.items() if mount.is_of_other_api}

    def is_own(self, phone: str) -> bool:
        """Return whether the plugin's binderfs was mounted for ``phone`` after the last call that concerned it."""
        return phone in self.file_systems

    def check(self) -> None:
        """Check without effect that phones could be mounted. Raises HostError."""
        with self._path() as directory:
            phone_mount.require_propagation(self._host, directory, read_mounts())
            binderfs.check_mountable(directory)

    def survey(self) -> set[str]:
        """Return the phones that have a binderfs, and set ``foreign`` and ``found``. Raises HostError.

        No right is required, because the mount table has the source of each mount.
        """
        foreign: set[str] = set()
        self.file_systems = {}
        with self._path() as directory:
            for phone in _phones_in(directory):
                try:
                    self._own_file_system(phone, f"{directory}/{phone}")
                except phone_mount.ForeignMountError:
                    foreign.add(phone)
        self.foreign = frozenset(foreign)
        self._forget_ended()
        return {*self.file_systems}

    def is_mounted(self, phone: str) -> bool:
        """Return whether the plugin's binderfs is mounted for ``phone``, and look which one. Raises HostError."""
        with self._path() as directory:
            return self._own_file_system(phone, f"{directory}/{phone}") is not None

    def provision(self, phones: Collection[str]) -> list[str]:
        """Mount a binderfs for each of ``phones`` that has none or a spoiled one; restore devices and modes in others.

        Restores the links to the binder devices of all phones as well, and removes those to devices that other calls
        have replaced or removed. Returns the IDs of the phones that were mounted.
        After a failure, ``error_text`` has the error, and mounted phones stay. An error of one phone does not affect
        the others, except that no further mount is attempted after a failed one. Mounted phones are checked even if
        nothing may be mounted in the directory, because a foreign file system must never reach a container. Raises
        HostError if the directory of the phones cannot be accessed.
        """
        mounted: list[str] = []
        self.mount_error = None
        if not (phones or self.directories()):
            self._links.repair({}, [self._host_directory])
            return mounted
        with self._path() as directory:
            table = read_mounts()
            self._own = phone_mount.own_mounts(table)
            try:
                phone_mount.require_propagation(self._host, directory, table)
            except HostError as error:
                self.mount_error = error.with_traceback(None)
            foreign: set[str] = set()
            kept = {*phones}
            others = [phone for phone in _phones_in(directory) if phone not in kept]
            for phone in (*phones, *others):
                path = f"{directory}/{phone}"
                self._forget(phone)
                try:
                    if phone not in kept:
                        self._own_file_system(phone, path)
                    elif self._restore_or_mount(phone, path):
                        mounted.append(phone)
                except HostError as error:
                    self.phone_errors[phone] = error
                    if isinstance(error, phone_mount.ForeignMountError):
                        foreign.add(phone)
            self.foreign = frozenset(foreign)
            self._forget_ended()
            self._link(self.file_systems, [self._host_directory])
        return mounted

    def replace(self, phone: str) -> None:
        """Replace the binderfs of ``phone`` by a fresh one. Containers and processes keep the old binderfs.

        If the process is killed between the unmount of the old binderfs and the attachment of the fresh one, the phone
        has none until the next ``provision``. Raises HostError.
        """
        with self._path() as directory:
            if isinstance(self.mount_error, phone_mount.PropagationError):
                raise self.mount_error
            self._own_file_system(phone, f"{directory}/{phone}")
            self._attach(phone, f"{directory}/{phone}")
            self._link([phone])

    def remove(self, phones: Iterable[str], limit: int) -> list[str]:
        """Unmount the binderfs of up to ``limit`` of ``phones``, and remove its directory. Containers keep it.

        Returns the IDs of the removed phones; ``error_text`` has why others were not. Raises HostError.
        """
        removed: list[str] = []
        with self._path() as directory:
            for phone in phones:
                if len(removed) == limit:
                    break
                self._forget(phone)
                try:
                    self._remove(phone, f"{directory}/{phone}")
                except HostError as error:
                    self.phone_errors[phone] = error
                else:
                    removed.append(phone)
        return removed

    def mount(self, phone: str) -> bool:
        """Mount a binderfs for ``phone``, unless it has one. Return whether it was mounted. Raises HostError."""
        with self._path() as directory:
            if self._own_file_system(phone, f"{directory}/{phone}") is not None:
                return False
            self._attach(phone, f"{directory}/{phone}")
            self._link([phone])
            return True

    def unmount(self, phone: str, *, before: float = math.inf) -> bool:
        """Unmount the binderfs of ``phone``, and remove its directory. Containers keep it. Idempotent.

        Another file system in its place stays, and so does a binderfs that was found first at the time ``before`` or
        later; return whether it does not. Raises HostError.
        """
        with self._path() as directory:
            try:
                if not self._remove(phone, f"{directory}/{phone}", before):
                    return False
            except phone_mount.ForeignMountError:
                self.foreign |= {phone}
            self._forget(phone)
            return True

    def directories(self) -> list[str]:
        """Return the phones that may have a binderfs: those with a directory. Raises HostError."""
        with self._path() as directory:
            return _phones_in(directory)

    def read(self, phone: str) -> Sequence[BinderDevice]:
        """Read the binder devices of a phone; none if it was not mounted by the last call that concerned it.

        Those on another file system have another kind than BINDERFS. Raises HostError.
        """
        if phone not in self.file_systems:
            return ()
        with translated_errors(f"read phones in {self._host_directory}"):
            driver = Driver(frozenset({self.file_systems[phone]}))
            reader = DeviceReader(self._host, driver, self._host_directory)
            return [*reader.read(phone, PHONE_BINDER_DEVICES)]

    def _path(self) -> contextlib.AbstractContextManager[str]:
        """Begin a call; see ``phones_below``."""
        self._own = None
        return phones_below(self._host, self._host_directory)

    def _forget(self, phone: str) -> None:
        self.file_systems.pop(phone, None)
        self.phone_errors.pop(phone, None)

    def _forget_ended(self) -> None:
        """Forget the mounts that are gone."""
        self.found = {phone: each for phone, each in self.found.items() if phone in self.file_systems}

    def _own_file_system(self, phone: str, path: str) -> int | None:
        """Return st_dev of the plugin's binderfs of a phone; None if there is none. Raises HostError.

        The mount table has a line for each phone, so it is read once in a call, and only if a mount is not a known one.
        """
        with translated_errors(f"read {path}"):
            st_dev = phone_mount.mounted_file_system(path)
        if st_dev is None or (st_dev == self.file_systems.get(phone) and self._is_known(phone, path)):
            return st_dev
        if self._own is None:
            self._own = phone_mount.own_mounts(read_mounts())
        source = self._own.get(path, {}).get(st_dev)
        if source is None:
            text = f"{path}: another file system is mounted in place of the phone's binderfs: unmount it"
            raise phone_mount.ForeignMountError(text)
        self.file_systems[phone] = st_dev
        if phone not in self.found or not self._is_known(phone, path):
            self.found[phone] = FoundMount(_identity(path), time.monotonic(), source != self._source)
        return st_dev

    def _is_known(self, phone: str, path: str) -> bool:
        """Return whether the mount of a phone is the one that was found, or made by this process. Raises HostError."""
        return phone not in self.found or self.found[phone].identity == _identity(path)

    def _restore_or_mount(self, phone: str, path: str) -> bool:
        """Restore a phone, or mount it if that is allowed; return whether it was mounted. Raises HostError.

        A container with CAP_SYS_ADMIN may have spoiled its binderfs, for example by a lower max=. If descriptors or
        memory are exhausted, that is not the phone's fault.
        """
        spoiled: HostError | None = None
        if self._own_file_system(phone, path) is not None:
            try:
                with translated_errors(f"restore {path}"):
                    phone_mount.fill(path, path)
            except HostError as error:
                if phone_mount.is_transient(error):
                    raise
                self._own_file_system(phone, path)  # another file system may have covered it meanwhile
                spoiled = error
            else:
                return False
        if self.mount_error is not None:
            return False
        try:
            with translated_errors(f"mount a binderfs on {path}"):
                self._attach(phone, path)
        except HostError as error:
            self.mount_error = error.with_traceback(None)
            return False
        if spoiled is not None:
            LOG.warning("phone spoiled, mounted a fresh binderfs", extra={"device": phone, "error": str(spoiled)})
        return True

    def _attach(self, phone: str, path: str) -> None:
        self.file_systems[phone] = phone_mount.attach_new(path, self._source)
        self.found.pop(phone, None)

    def _remove(self, phone: str, path: str, before: float = math.inf) -> bool:
        """Unmount a phone that was found first before this time; return whether it was. Raises HostError."""
        mounted = self._own_file_system(phone, path) is not None
        if mounted and phone in self.found and self.found[phone].since >= before:
            return False
        with translated_errors(f"remove {path}"):
            devices = self._devices([phone])
            if mounted:
                phone_mount.unmount_all(path)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(path)
                if devices:
                    self._links.remove(devices)
                else:  # its mount was lost
                    self._links.repair({}, [f"{self._host_directory}/{phone}"])
        self.found.pop(phone, None)
        return True

    def _link(self, phones: Iterable[str], directories: Iterable[str] = ()) -> None:
        """Link the binder devices of ``phones``, and remove wrong links that lead below ``directories``."""
        self._links.repair(self._devices(phones), directories)

    def _devices(self, phones: Iterable[str]) -> dict[str, str]:
        """Return the paths of the binder devices of ``phones``, by the names of their links."""
        return devices_below(self._host, self._host_directory, binder_devices_of(phones))


def _identity(path: str) -> tuple[int, int]:
    """Return st_dev and st_mtime in nanoseconds of the root of a mount. Raises HostError."""
    with translated_errors(f"read {path}"):
        status = os.stat(path)
    return status.st_dev, status.st_mtime_ns


def _phones_in(directory: str) -> list[str]:
    """Return the phones that have a directory."""
    try:
        return [name for name in os.listdir(directory) if phone_number(name) is not None]
    except FileNotFoundError:
        return []
