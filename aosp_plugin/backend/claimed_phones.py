"""The phones of a resource that is served by DRA: mounted when a claim is prepared, removed when it is over."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aosp_plugin.backend.phones import Phones, binder_devices
from aosp_plugin.binder.devices.phones import is_phone
from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from aosp_plugin.backend.health import Holds, PhoneState
    from aosp_plugin.backend.scanned import Scanned
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.discovery.store import DeviceStore
    from aosp_plugin.binder.provision.phones import PhoneProvisioner


class ClaimedPhones(Phones):
    """Offers ``count`` phones, and keeps those of prepared claims. For the worker thread, except for ``state``."""

    def __init__(self, provisioner: PhoneProvisioner, store: DeviceStore, count: int, holds: Holds) -> None:
        super().__init__(provisioner, store, count, holds)
        self._prepared: frozenset[str] = frozenset()
        """The phones of prepared claims. Replaced by single assignments."""
        self.unavailable = ""
        """Why no binderfs can be mounted; empty if one can. Replaced by a single assignment."""
        self.driver = ""
        """The implementation of the driver, c or rust; empty while unknown. Replaced by a single assignment."""

    def state(self) -> PhoneState:
        """Return what has a say in the health of the phones now. For any thread.

        The binder devices of a phone that is not prepared need not exist: they are replaced by fresh ones anyway.
        """
        return super().state()._replace(prepared=self._prepared, unavailable=self.unavailable)

    def names(self) -> Iterable[str]:
        """Return the names of the binder devices of all phones that are listed."""
        return binder_devices(self._configured | self._prepared | {*filter(is_phone, self._holds.ids)})

    def scan(self) -> None:
        """Find the mounts of earlier processes and what is in the way.

        Raises HostError if the directory of the phones cannot be read.
        """
        self._provisioner.survey()
        try:
            self._provisioner.check()
            self.unavailable = ""
        except HostError as error:
            self.unavailable = str(error)
        if not self.driver and not self.unavailable:
            self.driver = self._provisioner.driver()

    def update_host(self, scanned: Scanned) -> None:
        """Mount again what prepared phones have lost. Raises HostError, also if no phone could be mounted."""
        super().update_host(scanned)
        if self.unavailable:
            raise HostError(self.unavailable)

    def prepare(self, phones: Iterable[str]) -> list[str]:
        """Mount those of the phones that have no binderfs; return them. Raises HostError, and has mounted none then."""
        mounted: list[str] = []
        try:
            for phone in phones:
                if phone not in self._prepared and phone in self._provisioner.other_api:
                    self._provisioner.unmount(phone)  # its pod has ended, or it would be held
                if self._provisioner.mount(phone):
                    mounted.append(phone)
                if phone in mounted or phone not in self._prepared:
                    self._prepared |= {phone}
                    self._store.renew(binder_devices([phone]))
        except HostError:
            with contextlib.suppress(HostError):
                self.release(mounted)
            raise
        return mounted

    def read(self, phone: str) -> Sequence[BinderDevice]:
        """Return the existing binder devices of a prepared phone. Raises HostError."""
        return [device for device in self._provisioner.read(phone) if device.kind is Kind.BINDERFS]

    def release(self, phones: Iterable[str]) -> None:
        """Remove these phones, unless a pod has them through the other API. Raises HostError."""
        for phone in phones:
            if phone not in self._holds.ids:
                self._provisioner.unmount(phone)
                self._prepared -= {phone}
                self._store.drop(binder_devices([phone]))

    def existing(self) -> set[str]:
        """Return the phones that may have a binderfs, prepared or not. Raises HostError."""
        return {*self._provisioner.mounted(), *self._prepared}

    def _kept(self) -> Collection[str]:
        return self._prepared

    def _remove_surplus(self, scanned: Scanned) -> None:
        """Do nothing: a phone is removed when its claim is over, whatever the configured count is."""

    def _replace_those_of_claims(self) -> list[str]:
        return []
