"""The phones of one resource, by the way that they come into being.

``OfferedPhones`` are mounted after scans, and removed when the configured count is lower. ``ProvisionedPhones`` are
mounted by ``aosp-plugin provision``. ``ClaimedPhones`` are mounted when a claim is prepared, and removed at its end.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.backend.scanned import Holds, PhoneState, Scanned
from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.devices.sets import PHONE_BINDER_DEVICES, is_phone, phone_id, replica_ids
from aosp_plugin.binder.devices.store import DeviceStore
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.framework.timings import DEFAULT

if TYPE_CHECKING:
    from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner

LOG = logging.getLogger(__name__)

SURPLUS_INTERVAL = DEFAULT.allocations
"""Seconds between two scans while there are phones beyond the configured count that may have become free."""

REMOVALS = 100
"""Phones that are removed after one scan. Containers that start wait for it."""


class Allocated(NamedTuple):
    """Which devices pods have, according to the kubelet."""

    ids: frozenset[str]
    """As the plugin advertises them, so with the number of a replica if there are several."""
    asked: float
    """When the kubelet was asked, in seconds of ``time.monotonic``."""


class OfferedPhones:
    """Keeps ``count`` phones. For the worker thread, except for ``state`` and the setting of ``allocated``."""

    def __init__(
        self,
        provisioner: PhoneProvisioner,
        store: DeviceStore,
        count: int,
        holds: Holds,
        *,
        replicas: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provisioner = provisioner
        self._store = store
        self._holds = holds
        self._replicas = replicas
        self._clock = clock
        self._ordered = [phone_id(number) for number in range(count)]
        self._configured = frozenset(self._ordered)
        self._surplus_since: dict[str, float] = {}
        self.allocated: Allocated | None = None
        """None while it is unknown. Replaced by a single assignment."""

    @property
    def surplus(self) -> bool:
        """Whether there are phones beyond the configured count. May be read in any thread."""
        return bool(self._surplus_since)

    def state(self) -> PhoneState:
        """Return what has a say in the health of the phones now. For any thread."""
        return PhoneState(self._configured, self._provisioner.foreign)

    def names(self) -> Iterable[str]:
        """Return the names of the binder devices of all phones that are listed."""
        return self._store.devices

    def check(self) -> None:
        """Check without effect that phones could be mounted. Raises HostError."""
        self._provisioner.check()

    def scan(self) -> None:
        """Read the mounts before the binder devices are scanned, if that is required. Raises HostError."""

    def update_host(self, scanned: Scanned) -> None:
        """Mount missing phones, and remove surplus ones that are free. Raises HostError.

        A phone that another process of the plugin has mounted again, in a rolling update, does not count as replaced.
        """
        mounted = self._provisioner.provision(self._kept())
        mounted += self._replace_those_of_claims()
        found = [phone for phone in replaced_phones(scanned) if self._provisioner.is_own(phone)]
        self._store.renew(binder_devices([*mounted, *found]))
        if mounted:
            LOG.info("phones mounted", extra={"phones": len(mounted)})
        self._remove_surplus(scanned)
        if self._provisioner.problem:
            raise HostError(self._provisioner.problem)

    def _kept(self) -> Collection[str]:
        """Return the phones that must have a binderfs."""
        return self._ordered

    def _replace_those_of_claims(self) -> list[str]:
        """Replace the phones that were mounted for ResourceClaims, when no pod has them any more."""
        if self._holds.reported is None:
            return []
        replaced = [phone for phone in self._provisioner.other_api - self._holds.ids if phone in self._configured]
        for phone in replaced:
            self._provisioner.replace(phone)
        return replaced

    def _remove_surplus(self, scanned: Scanned) -> None:
        """Remove surplus phones that were free when the kubelet already knew that they must not be allocated."""
        now = self._clock()
        surplus = [phone for phone in scanned.sets if phone not in self._configured]
        if surplus and not self._surplus_since:
            LOG.info("surplus phones found, removing free ones", extra={"phones": len(surplus)})
        self._surplus_since = {phone: self._surplus_since.get(phone, now) for phone in surplus}
        for phone in self._provisioner.obstacles.keys() - self._configured - self._surplus_since.keys():
            del self._provisioner.obstacles[phone]  # the operator has removed it
        allocated = self.allocated
        if allocated is None:
            return
        free = [
            phone
            for phone, since in self._surplus_since.items()
            if allocated.ids.isdisjoint(replica_ids(phone, self._replicas))
            and allocated.asked > since + SURPLUS_INTERVAL
        ]
        if free and (removed := self._provisioner.remove(free, REMOVALS)):
            self._store.drop(binder_devices(removed))
            self._surplus_since = {phone: self._surplus_since[phone] for phone in surplus if phone not in removed}
            LOG.info("surplus phones removed", extra={"phones": len(removed), "remaining": len(self._surplus_since)})


class ProvisionedPhones(OfferedPhones):
    """Phones that ``aosp-plugin provision`` has mounted: listed and checked, never mounted or removed.

    ``serve`` may have no right to mount them (``provisioned_by: command``). A phone without a binderfs stays listed, so
    that its loss and the remedy are visible for as long as it lasts.
    """

    _mounted: frozenset[str] = frozenset()

    def state(self) -> PhoneState:
        """Return what has a say in the health of the phones now. For any thread."""
        return super().state()._replace(mounted=self._mounted)

    def names(self) -> Iterable[str]:
        """Return the names of the binder devices of ``count`` phones and of surplus ones."""
        return {*self._store.devices, *binder_devices(self._ordered)}

    def check(self) -> None:
        """Do nothing: no right to mount is required."""

    def scan(self) -> None:
        """Find the mounts. Raises HostError if their directory cannot be read."""
        self._mounted = frozenset(self._provisioner.survey())

    def update_host(self, scanned: Scanned) -> None:
        """Accept a fresh binderfs in place of a phone's former one, as ``aosp-plugin provision`` mounts it."""
        self._store.renew(binder_devices(replaced_phones(scanned) & self._mounted))


class ClaimedPhones(OfferedPhones):
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


def replaced_phones(scanned: Scanned) -> set[str]:
    """Return the phones whose binder devices are on another file system than before."""
    return {name.partition("/")[0] for name, reason in scanned.reasons.items() if reason is Reason.REPLACED}


def binder_devices(phones: Iterable[str]) -> list[str]:
    """Return the names of the binder devices of phones."""
    return [f"{phone}/{name}" for phone in phones for name in PHONE_BINDER_DEVICES]
