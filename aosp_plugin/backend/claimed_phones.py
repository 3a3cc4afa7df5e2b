"""The phones of a resource that is served by DRA: mounted when a claim is prepared, removed when it is over."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aosp_plugin.backend.phones import Phones, binder_devices
from aosp_plugin.binder.devices.phones import is_phone
from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.discovery.health import Problem, Reason
from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.binder.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from aosp_plugin.backend.device_table import Scanned
    from aosp_plugin.backend.holds import Holds
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.discovery.store import DeviceStore
    from aosp_plugin.binder.provision.claimed import ClaimedPhoneProvisioner


class ClaimedPhones(Phones):
    """Offers ``count`` phones, and keeps those of prepared claims. For the worker thread, except for ``reason``."""

    def __init__(self, provisioner: ClaimedPhoneProvisioner, store: DeviceStore, count: int, holds: Holds) -> None:
        super().__init__(provisioner, store, count, holds)
        self._claimed = provisioner
        self._offered, self._phones = frozenset(self._phones), {}
        self._names: tuple[frozenset[str], Sequence[str]] = frozenset(), ()
        self.unavailable = ""
        """Why no binderfs can be mounted; empty if one can. Replaced by a single assignment."""
        self.driver = ""
        """The implementation of the driver, c or rust; empty while unknown. Replaced by a single assignment."""

    def names(self) -> Sequence[str]:
        """Return the names of the binder devices of all phones that are listed, in natural order."""
        phones = self._offered | self._phones.keys() | {*filter(is_phone, self._holds.ids)}
        if phones != self._names[0]:
            self._names = phones, binder_devices(natural_sort([*phones]))
        return self._names[1]

    def is_listed(self, name: str) -> bool:
        """Return whether a binder device is one of ``names``."""
        phone = name.partition("/")[0]
        return phone in self._offered or phone in self._phones or (phone in self._holds.ids and is_phone(phone))

    def reason(self, name: str, reason: Reason | None) -> Reason | None:
        """Return why no container may get the phone with the binder device ``name``; None if one may.

        The binder devices of a phone that is not prepared need not exist: they are replaced by fresh ones anyway.
        """
        phone = name.partition("/")[0]
        if phone in self._phones:
            return super().reason(name, reason)
        return Reason.FOREIGN_MOUNT if phone in self._provisioner.foreign else None

    def problem(self, phone: str) -> Problem | None:
        """Return why a phone is not offered, although nothing is in its place; None if it is."""
        if phone not in self._offered:
            return Problem(Reason.SURPLUS, str(Reason.SURPLUS))
        if not self.unavailable or phone in self._phones:
            return None
        reason = Reason.BINDERFS_UNAVAILABLE
        return Problem(reason, f"{reason}: {self.unavailable}")

    def scan(self, changed: Collection[str] | None) -> None:
        """Find the mounts of earlier processes and what is in the way, unless nothing has ``changed``.

        Raises HostError if the directory of the phones cannot be read.
        """
        if changed is not None and not changed and not self.unavailable:
            return
        before = self._provisioner.foreign
        self._claimed.survey()
        self.changed.update(binder_devices(before ^ self._provisioner.foreign))
        try:
            self._provisioner.check()
            unavailable = ""
        except HostError as error:
            unavailable = str(error)
        if unavailable != self.unavailable:
            self.unavailable = unavailable
            self.changed.update(binder_devices(self._offered))
        if not self.driver and not unavailable:
            self.driver = self._claimed.driver()

    def update_host(self, scanned: Scanned, *, full: bool) -> None:
        """Mount again what prepared phones have lost. Raises HostError, also if no phone could be mounted."""
        super().update_host(scanned, full=full)
        if self.unavailable:
            raise HostError(self.unavailable)

    def prepare(self, phones: Iterable[str]) -> list[str]:
        """Mount those of the phones that have no binderfs; return them. Raises HostError, and has mounted none then."""
        mounted: list[str] = []
        try:
            for phone in phones:
                if phone not in self._phones and phone in self._provisioner.other_api:
                    self._claimed.unmount(phone)  # its pod has ended, or it would be held
                if self._claimed.mount(phone):
                    mounted.append(phone)
                if phone in mounted or phone not in self._phones:
                    self._phones[phone] = binder_devices([phone])
                    self._store.renew(self._phones[phone])
        except HostError:
            with contextlib.suppress(HostError):
                self.release(mounted)
            raise
        return mounted

    def read(self, phone: str) -> Sequence[BinderDevice]:
        """Return the existing binder devices of a prepared phone. Raises HostError."""
        return [device for device in self._claimed.read(phone) if device.kind is Kind.BINDERFS]

    def release(self, phones: Iterable[str]) -> None:
        """Remove these phones, unless a pod has them through the other API. Raises HostError."""
        for phone in phones:
            if phone not in self._holds.ids:
                self._claimed.unmount(phone)
                self._phones.pop(phone, None)
                self._store.drop(binder_devices([phone]))
                self.changed.update(binder_devices([phone]))

    def existing(self) -> set[str]:
        """Return the phones that may have a binderfs, prepared or not. Raises HostError."""
        return {*self._claimed.mounted(), *self._phones}

    def _remove_surplus(self, scanned: Scanned) -> None:
        """Do nothing: a phone is removed when its claim is over, whatever the configured count is."""

    def _replace_those_of_claims(self) -> list[str]:
        return []
