"""A binderfs for each phone: mounted, found again, replaced by a fresh one, and removed.

The mounts are the only record of which phones exist. Their source identifies those that the plugin made, with any
configuration. ``phone_mount`` handles one of them.
"""

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from aosp_plugin.binder.devices.scanner import BinderDevice, DeviceReader
from aosp_plugin.binder.devices.sets import PHONE_BINDER_DEVICES, phone_number
from aosp_plugin.binder.driver import binderfs, detached
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.binder.driver.mounts import MountPoint
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.binder.provision import phone_mount
from aosp_plugin.binder.provision.device_provisioner import exclusive, provisioning, translated_errors

LOG = logging.getLogger(__name__)


class PhoneProvisioner:
    """The binderfs mounts of phones below one directory of the host. For one worker thread.

    ``provision``, ``replace`` and ``remove`` keep phones that exist all the time; ``mount`` and ``unmount`` are for
    those of ResourceClaims, one by one, at a cost that does not depend on how many there are.
    """

    def __init__(self, directory: str, host: Host, *, source: str = phone_mount.SOURCE) -> None:
        """``directory`` is the host's. The host is not accessed.

        ``source`` is that of the mounts. Those of the other API are the plugin's as well, and are left as they are.
        """
        self._host_directory = directory
        self._host = host
        self._source = source
        self._own: Mapping[str, Mapping[int, str]] | None = None  # the mounts as of the present call, when read
        self._devices: dict[str, int] = {}  # st_dev of the mounts that are known to be the plugin's
        self.failure: HostError | None = None
        """Why the last call of ``provision`` could not mount any further phone; None if it could."""
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
        errors = [*filter(None, [self.failure]), *self.obstacles.values()]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"{errors[0]}{more}" if errors else ""

    def is_own(self, phone: str) -> bool:
        """Return whether the plugin's binderfs was mounted for ``phone`` after the last call that concerned it."""
        return phone in self._devices

    def known(self, phones: Iterable[str]) -> dict[str, Any]:
        """Return what is known of phones after a call, as plain data, for another process; see ``learn``."""
        known = [*phones]
        return {
            "devices": {phone: self._devices[phone] for phone in known if phone in self._devices},
            "foreign": [*self.foreign.intersection(known)],
            "other_api": [*self.other_api.intersection(known)],
            "failure": str(self.failure or ""),
            "obstacles": {phone: str(self.obstacles[phone]) for phone in known if phone in self.obstacles},
        }

    def learn(self, phones: Collection[str], known: Mapping[str, Any]) -> None:
        """Take over what another process knows of phones."""
        for phone in phones:
            self._forget(phone)
        self._devices.update(known["devices"])
        self.obstacles.update({phone: HostError(text) for phone, text in known["obstacles"].items()})
        self.foreign = self.foreign.difference(phones).union(known["foreign"])
        self.other_api = self.other_api.difference(phones).union(known["other_api"])
        self.failure = HostError(known["failure"]) if known["failure"] else None

    def check(self) -> None:
        """Check without effect that phones could be mounted. Raises HostError."""
        with self._path() as directory:
            self._require_allowed(directory, phone_mount.read_mount_table())
            detached.check_mountable(directory)

    def survey(self) -> set[str]:
        """Return the phones that have a binderfs, and set ``foreign`` and ``other_api``. Changes nothing.

        No right is required: the mount table has the source of each mount. Raises HostError.
        """
        foreign: set[str] = set()
        self._devices = {}
        with self._path() as directory:
            for phone in _phones_in(directory):
                try:
                    self._own_device(phone, f"{directory}/{phone}")
                except phone_mount.ForeignMountError:
                    foreign.add(phone)
        self.foreign = frozenset(foreign)
        self.other_api &= self._devices.keys()
        return {*self._devices}

    def provision(self, phones: Collection[str]) -> list[str]:
        """Mount a binderfs for each of ``phones`` that has none or a spoiled one; restore devices and modes in others.

        Returns the IDs of the phones that were mounted. ``problem`` has what failed; what was mounted stays. A phone
        whose directory is in use does not affect the others. If a mount fails, no other one is attempted. If nothing
        may be mounted in the directory, the phones that are mounted are checked nevertheless: another file system in
        place of one must never reach a container. Raises HostError if the directory of the phones cannot be accessed.
        """
        mounted: list[str] = []
        self.failure = None
        if not phones:
            return mounted
        with self._path() as directory, exclusive(directory):
            table = phone_mount.read_mount_table()
            self._own = phone_mount.own_mounts(table)
            try:
                self._require_allowed(directory, table)
            except HostError as error:
                self.failure = error.with_traceback(None)
            foreign = set(self.foreign.difference(phones))
            for phone in phones:
                self._forget(phone)
                try:
                    if self._restore_or_mount(phone, f"{directory}/{phone}"):
                        mounted.append(phone)
                except HostError as error:
                    self.obstacles[phone] = error
                    if isinstance(error, phone_mount.ForeignMountError):
                        foreign.add(phone)
            self.foreign = frozenset(foreign)
        return mounted

    def replace(self, phone: str) -> None:
        """Mount a fresh binderfs in place of that of ``phone``. Containers and processes keep the old one.

        After a failure before the old one is unmounted, it is unchanged. If the process is killed between that and the
        attachment of the new one, the phone has none until the next ``provision``. Raises HostError.
        """
        with self._path() as directory, exclusive(directory):
            if isinstance(self.failure, phone_mount.PropagationError):
                raise self.failure
            self._own_device(phone, f"{directory}/{phone}")
            self._attach(phone, f"{directory}/{phone}")

    def remove(self, phones: Iterable[str], limit: int) -> list[str]:
        """Unmount the binderfs of up to ``limit`` of ``phones``, and remove its directory. Containers keep it.

        Returns the IDs of those that were removed; ``problem`` has why others were not. Raises HostError.
        """
        removed: list[str] = []
        with self._path() as directory, exclusive(directory):
            for phone in phones:
                if len(removed) == limit:
                    break
                self._forget(phone)
                try:
                    self._remove(phone, f"{directory}/{phone}")
                except HostError as error:
                    self.obstacles[phone] = error
                else:
                    removed.append(phone)
        return removed

    def mount(self, phone: str) -> bool:
        """Mount a binderfs for ``phone``, unless it has one. Return whether it was mounted. Raises HostError."""
        with self._path() as directory, exclusive(directory):
            if self._own_device(phone, f"{directory}/{phone}") is not None:
                return False
            self._attach(phone, f"{directory}/{phone}")
            return True

    def unmount(self, phone: str) -> None:
        """Unmount the binderfs of ``phone``, and remove its directory. Containers keep it. Idempotent.

        What is in its place instead stays. Raises HostError.
        """
        with self._path() as directory, exclusive(directory):
            try:
                self._remove(phone, f"{directory}/{phone}")
            except phone_mount.ForeignMountError:
                self.foreign |= {phone}
            self._forget(phone)

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
            return [*reader.read(phone, PHONE_BINDER_DEVICES)]

    def driver(self) -> str:
        """Return the implementation of the driver, c or rust; empty if unknown. Raises HostError.

        A binderfs that is not attached to any directory is created for it.
        """
        with self._path(), detached.create_mount(self._host_directory, self._source) as mount:
            return binderfs.implementation(f"/proc/self/fd/{mount}")

    def _path(self) -> contextlib.AbstractContextManager[str]:
        """Begin a call; see ``provisioning``."""
        self._own = None
        return provisioning("phones", self._host, self._host_directory)

    def _require_allowed(self, directory: str, table: Iterable[MountPoint]) -> None:
        """Raise HostError if nothing may be mounted in the directory of the phones."""
        phone_mount.require_own_directory(directory)
        in_container = self._host.process_path("/") != "/"
        phone_mount.require_propagation(directory, table, in_container=in_container)

    def _forget(self, phone: str) -> None:
        self._devices.pop(phone, None)
        self.obstacles.pop(phone, None)

    def _own_device(self, phone: str, path: str) -> int | None:
        """Return the number (st_dev) of the plugin's binderfs of a phone; None if there is none. Raises HostError.

        The mount table has a line for each phone, so it is read once in a call, and only if a mount is not a known one.
        """
        with translated_errors(f"read {path}"):
            device = phone_mount.mounted_device(path)
        if device is None or device == self._devices.get(phone):
            return device
        if self._own is None:
            self._own = phone_mount.own_mounts(phone_mount.read_mount_table())
        source = self._own.get(path, {}).get(device)
        if source is None:
            text = f"{path}: another file system is mounted in place of the phone's binderfs: unmount it"
            raise phone_mount.ForeignMountError(text)
        self._devices[phone] = device
        self.other_api = self.other_api - {phone} if source == self._source else self.other_api | {phone}
        return device

    def _restore_or_mount(self, phone: str, path: str) -> bool:
        """Restore a phone, or mount it if that is allowed; return whether it was mounted. Raises HostError.

        A container with CAP_SYS_ADMIN may have spoiled its binderfs, for example by a lower max=. If descriptors or
        memory are exhausted, that is not the phone's fault.
        """
        spoiled: HostError | None = None
        if self._own_device(phone, path) is not None:
            try:
                with translated_errors(f"restore {path}"):
                    phone_mount.fill(path, path)
            except HostError as error:
                if phone_mount.is_transient(error):
                    raise
                spoiled = error
            else:
                return False
        if self.failure is not None:
            return False
        try:
            with translated_errors(f"mount a binderfs on {path}"):
                self._attach(phone, path)
        except HostError as error:
            self.failure = error.with_traceback(None)
            return False
        if spoiled is not None:
            LOG.warning("phone spoiled, mounted a fresh binderfs", extra={"device": phone, "error": str(spoiled)})
        return True

    def _attach(self, phone: str, path: str) -> None:
        self._devices[phone] = phone_mount.attach_new(path, self._source)
        self.other_api -= {phone}

    def _remove(self, phone: str, path: str) -> None:
        mounted = self._own_device(phone, path) is not None
        with translated_errors(f"remove {path}"):
            if mounted:
                phone_mount.unmount_all(path)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(path)
        self.other_api -= {phone}


def _phones_in(directory: str) -> list[str]:
    """Return the phones that have a directory."""
    try:
        return [name for name in os.listdir(directory) if phone_number(name) is not None]
    except FileNotFoundError:
        return []
