"""A binderfs for each phone of a ResourceClaim: mounted when the claim is prepared, and removed when it is over."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices.phones import PHONE_BINDER_DEVICES
from aosp_plugin.binder.discovery.scanner import DeviceReader
from aosp_plugin.binder.driver import binderfs, detached
from aosp_plugin.binder.driver.host import Driver
from aosp_plugin.binder.provision import phone_mount
from aosp_plugin.binder.provision.mount import exclusive
from aosp_plugin.binder.provision.mounted_phones import phones_in
from aosp_plugin.binder.provision.phones import PhoneProvisioner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aosp_plugin.binder.discovery.binder_device import BinderDevice


class ClaimedPhoneProvisioner(PhoneProvisioner):
    """Mounts phones one by one; a call costs the same however many there are. For one worker thread."""

    source = phone_mount.CLAIM_SOURCE

    def mount(self, phone: str) -> bool:
        """Mount a binderfs for ``phone``, unless it has one. Return whether it was mounted. Raises HostError."""
        with self._errors():
            return self._mount_one(self._directory(), phone)

    def unmount(self, phone: str) -> None:
        """Unmount the binderfs of ``phone``, and remove its directory. Containers keep it. Idempotent.

        What is in its place instead stays. Raises HostError.
        """
        with self._errors():
            self._unmount_one(self._directory(), phone)

    def mounted(self) -> list[str]:
        """Return the phones that may have a binderfs: those with a directory. Raises HostError."""
        with self._errors():
            return phones_in(self._directory())

    def read(self, phone: str) -> Sequence[BinderDevice]:
        """Read the binder devices of a phone; none if it was not mounted by the last call that concerned it.

        Those on another file system have another kind than BINDERFS. Raises HostError.
        """
        if phone not in self._devices:
            return ()
        with self._errors():
            driver = Driver(frozenset({self._devices[phone]}))
            reader = DeviceReader(self._host, driver, self._host_directory)
            return [*reader.read_all(f"{phone}/{name}" for name in PHONE_BINDER_DEVICES).values()]

    def driver(self) -> str:
        """Return the implementation of the driver, c or rust; empty if unknown. Raises HostError.

        A binderfs that is not attached to any directory is created for it.
        """
        with self._errors(), detached.create(self._host_directory, self.source) as mount:
            return binderfs.implementation(f"/proc/self/fd/{mount}")

    def _mount_one(self, directory: str, phone: str) -> bool:
        path = f"{directory}/{phone}"
        with exclusive(directory):
            if (device := self._require_own(phone, path)) is not None:
                self._devices[phone] = device
                return False
            if not os.path.lexists(directory):
                detached.check_mountable(directory)
                os.makedirs(directory)
            self._devices[phone] = phone_mount.attach_new(path, self.source)
            return True

    def _unmount_one(self, directory: str, phone: str) -> None:
        path = f"{directory}/{phone}"
        with exclusive(directory):
            self.obstacles.pop(phone, None)
            try:
                if self._require_own(phone, path) is not None:
                    phone_mount.unmount_all(path)
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(path)
            except phone_mount.ForeignMountError:
                self.foreign |= {phone}
            self._devices.pop(phone, None)
            self.other_api -= {phone}
