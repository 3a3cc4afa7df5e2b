"""The phones of one resource, in a class for each way in which they are made.

``OfferedPhones`` are mounted after scans, and removed when the configured count is lower. ``ProvisionedPhones`` are
mounted by ``aosp-plugin provision``, and ``ClaimedPhones`` when a claim is prepared.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence

from aosp_plugin.backend.found_devices import FoundDevices, HeldDevices, PhoneState
from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.devices.sets import binder_devices_of, is_phone, phone_id, replica_ids
from aosp_plugin.binder.devices.store import DeviceStore
from aosp_plugin.binder.driver.host import Host, HostError
from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE, SOURCE
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.binder.provision.provisioner_socket import RemotePhoneProvisioner
from aosp_plugin.config.keys import Resource
from aosp_plugin.config.values import Api, ProvisionedBy
from aosp_plugin.framework.podresources_client import ALLOCATIONS_INTERVAL

LOG = logging.getLogger(__name__)

SURPLUS_INTERVAL = ALLOCATIONS_INTERVAL
"""Seconds between two scans while there are phones beyond the configured count that may have become free."""

REMOVALS = 100
"""Phones that are removed after one scan. Containers that start wait for it."""


class OfferedPhones:
    """Keeps ``count`` phones. For the worker thread."""

    def __init__(
        self,
        provisioner: PhoneProvisioner,
        store: DeviceStore,
        count: int,
        held: HeldDevices,
        *,
        replicas: int,
        clock: Callable[[], float],
    ) -> None:
        self._provisioner = provisioner
        self._store = store
        self._held = held
        self._replicas = replicas
        self._clock = clock
        self._ordered = [phone_id(number) for number in range(count)]
        self._configured = frozenset(self._ordered)
        self._surplus_since: dict[str, float] = {}

    def state(self) -> PhoneState:
        """Return the present state of the phones, which decides on their health."""
        return PhoneState(self._configured, self._provisioner.foreign)

    def names(self) -> Iterable[str]:
        """Return the names of the binder devices of all listed phones, including held phones without a mount."""
        return dict.fromkeys([*self._store.devices, *binder_devices_of(filter(is_phone, self._held.problems))])

    def check(self) -> None:
        """Check without effect that phones could be mounted. Raises HostError."""
        self._provisioner.check()

    def scan(self) -> None:
        """Read the mounts before the binder devices are scanned, if that is required. Raises HostError."""

    def update_host(self, found: FoundDevices) -> None:
        """Mount missing phones, and remove surplus ones that are free. Raises HostError.

        A phone that another process of the plugin has replaced, as in a rolling update, is accepted.
        """
        mounted = self._provisioner.provision(self._kept())
        mounted += self._replace_those_of_claims()
        replaced = [phone for phone in replaced_phones(found) if self._provisioner.is_own(phone)]
        self._store.renew(binder_devices_of([*mounted, *replaced]))
        if mounted:
            LOG.info("phones mounted", extra={"phones": len(mounted)})
        self._remove_surplus(found)
        if self._provisioner.error_text:
            raise HostError(self._provisioner.error_text)

    def _kept(self) -> Collection[str]:
        """Return the phones that must have a binderfs, except held phones, which stay as they are."""
        return [phone for phone in self._ordered if phone not in self._held.problems]

    def _replace_those_of_claims(self) -> list[str]:
        """Replace the phones that were mounted for ResourceClaims and that no pod has any more; return them."""
        free = self._provisioner.other_api.keys() - self._held.problems.keys()
        replaced = [phone for phone in free if phone in self._configured]
        for phone in replaced:
            self._provisioner.replace(phone)
        return replaced

    def _remove_surplus(self, found: FoundDevices) -> None:
        """Remove surplus phones that were free after the kubelet had learned not to allocate them."""
        now = self._clock()
        surplus = [phone for phone in found.sets if phone not in self._configured]
        if surplus and not self._surplus_since:
            LOG.info("surplus phones found, removing free ones", extra={"phones": len(surplus)})
        self._surplus_since = {phone: self._surplus_since.get(phone, now) for phone in surplus}
        for phone in self._provisioner.phone_errors.keys() - self._configured - self._surplus_since.keys():
            del self._provisioner.phone_errors[phone]  # the operator has removed it
        allocated = self._held.told().allocated
        if allocated is None:
            return
        free = [
            phone
            for phone, since in self._surplus_since.items()
            if phone not in self._held.problems
            and allocated.ids.isdisjoint(replica_ids(phone, self._replicas))
            and allocated.asked > since + SURPLUS_INTERVAL
        ]
        if free and (removed := self._provisioner.remove(free, REMOVALS)):
            self._store.drop(binder_devices_of(removed))
            self._surplus_since = {phone: self._surplus_since[phone] for phone in surplus if phone not in removed}
            LOG.info("surplus phones removed", extra={"phones": len(removed), "remaining": len(self._surplus_since)})


class ProvisionedPhones(OfferedPhones):
    """Phones that ``aosp-plugin provision`` has mounted: listed and checked, never mounted or removed.

    ``serve`` may have no right to mount them (``provisioned_by: command``). A phone without a binderfs stays listed, so
    that its loss and the remedy are visible.
    """

    _mounted: frozenset[str] = frozenset()

    def state(self) -> PhoneState:
        """Return the present state of the phones, which decides on their health."""
        return super().state()._replace(mounted=self._mounted)

    def names(self) -> Iterable[str]:
        """Return the names of the binder devices of the configured phones and of surplus phones."""
        return {*self._store.devices, *binder_devices_of(self._ordered)}

    def check(self) -> None:
        """Do nothing: no right to mount is required."""

    def scan(self) -> None:
        """Find the mounts. Raises HostError if their directory cannot be read."""
        self._mounted = frozenset(self._provisioner.survey())

    def update_host(self, found: FoundDevices) -> None:
        """Accept the fresh binderfs that ``aosp-plugin provision`` has mounted in place of a phone's former one."""
        self._store.renew(binder_devices_of(replaced_phones(found) & self._mounted))


class ClaimedPhones(OfferedPhones):
    """Offers ``count`` phones, and keeps the phones of prepared claims."""

    _prepared: frozenset[str] = frozenset()
    """The phones of prepared claims."""
    _mounted: frozenset[str] = frozenset()
    """The phones that had a binderfs at the last scan, without those that were released since."""
    unavailable = ""
    """Why no binderfs can be mounted; empty if one can."""

    def state(self) -> PhoneState:
        """Return the present state of the phones, which decides on their health.

        The binder devices of a phone need not exist before it is prepared.
        """
        unclaimed = self._mounted - self._prepared
        return super().state()._replace(prepared=self._prepared, unclaimed=unclaimed, unavailable=self.unavailable)

    def names(self) -> Iterable[str]:
        """Return the names of the binder devices of all phones that are listed."""
        return binder_devices_of(self._configured | self._prepared | {*filter(is_phone, self._held.problems)})

    def scan(self) -> None:
        """Find the mounts of earlier processes, and obstacles in their places.

        Raises HostError if the directory of the phones cannot be read.
        """
        self._mounted = frozenset(self._provisioner.survey())
        try:
            self._provisioner.check()
            self.unavailable = ""
        except HostError as error:
            self.unavailable = str(error)

    def update_host(self, found: FoundDevices) -> None:
        """Mount prepared phones that have lost their mounts. Raises HostError, also if no phone could be mounted."""
        super().update_host(found)
        if self.unavailable:
            raise HostError(self.unavailable)

    def prepare(self, phones: Iterable[str]) -> list[str]:
        """Mount the phones that have no binderfs, and return them; all or none. Raises HostError."""
        mounted: list[str] = []
        try:
            for phone in phones:
                if self._provisioner.mount(phone):
                    mounted.append(phone)
                if phone in mounted or phone not in self._prepared:
                    self._prepared |= {phone}
                    self._store.renew(binder_devices_of([phone]))
        except HostError:
            with contextlib.suppress(HostError):
                self.release(mounted)
            raise
        return mounted

    def read(self, phone: str) -> Sequence[BinderDevice]:
        """Return the existing binder devices of a prepared phone. Raises HostError."""
        return [device for device in self._provisioner.read(phone) if device.kind is Kind.BINDERFS]

    def release(self, phones: Iterable[str], *, before: float = math.inf) -> None:
        """Remove these phones, unless they are held, or were found first at the time ``before`` or later.

        Raises HostError.
        """
        for phone in phones:
            with contextlib.suppress(HostError):  # releasing it reports that
                # Another process may have replaced it for the other API, so that it is held.
                self._provisioner.is_mounted(phone)
            if phone not in self._held.problems and self._provisioner.unmount(phone, before=before):
                self._prepared -= {phone}
                self._mounted -= {phone}
                self._store.drop(binder_devices_of([phone]))

    def _kept(self) -> Collection[str]:
        return self._prepared

    def _remove_surplus(self, found: FoundDevices) -> None:  # noqa: ARG002 - the configured count does not matter
        """Remove phones that no claim has, if no pod has them either: those of the other API, or of a lost record.

        Others are removed when their claim is over. One that was mounted since the question may have a claim already:
        another process of the driver may serve it.
        """
        allocated = self._held.told().allocated
        if allocated is not None:
            self.release(sorted(self._mounted - self._prepared - allocated.ids), before=allocated.asked)

    def _replace_those_of_claims(self) -> list[str]:
        return []


def phone_provisioner(host: Host, resource: Resource) -> PhoneProvisioner | None:
    """Return the provisioner that mounts or finds the binderfs of each phone; None without ``phones``."""
    if resource.phones is None:
        return None
    kind = RemotePhoneProvisioner if resource.provisioned_by is ProvisionedBy.PROVISIONER else PhoneProvisioner
    return kind(resource.phones.directory, host, source=CLAIM_SOURCE if resource.api is Api.DRA else SOURCE)


def phones_of(
    resource: Resource,
    provisioner: PhoneProvisioner | None,
    store: DeviceStore,
    held: HeldDevices,
    clock: Callable[[], float],
) -> OfferedPhones | None:
    """Return the phones of a resource, in the class for the way in which they are made; None without ``phones``."""
    if resource.phones is None or provisioner is None:
        return None
    kind = OfferedPhones
    if resource.api is Api.DRA:
        kind = ClaimedPhones
    elif resource.provisioned_by is ProvisionedBy.COMMAND:
        kind = ProvisionedPhones
    return kind(provisioner, store, resource.phones.count, held, replicas=resource.replicas, clock=clock)


def replaced_phones(found: FoundDevices) -> set[str]:
    """Return the phones whose binder devices are on another file system than before."""
    return {name.partition("/")[0] for name, reason in found.reasons.items() if reason is Reason.REPLACED}
