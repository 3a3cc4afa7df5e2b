"""The phones of one resource, in a class for each way in which they are made.

``OfferedPhones`` are mounted after scans, and removed when the configured count is lower. ``ProvisionedPhones`` are
mounted by ``aosp-plugin provision``. ``claims_backend`` has those that are mounted when a claim is prepared.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable

from aosp_plugin.backend.found_devices import FoundDevices, HeldDevices, PhoneState
from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.binder.devices.sets import PHONE_BINDER_DEVICES, is_phone, phone_id, replica_ids
from aosp_plugin.binder.devices.store import DeviceStore
from aosp_plugin.binder.driver.host import HostError
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
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
        replicas: int = 1,
        clock: Callable[[], float] = time.monotonic,
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
        return dict.fromkeys([*self._store.devices, *binder_devices(filter(is_phone, self._held.problems))])

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
        self._store.renew(binder_devices([*mounted, *replaced]))
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
            self._store.drop(binder_devices(removed))
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
        return {*self._store.devices, *binder_devices(self._ordered)}

    def check(self) -> None:
        """Do nothing: no right to mount is required."""

    def scan(self) -> None:
        """Find the mounts. Raises HostError if their directory cannot be read."""
        self._mounted = frozenset(self._provisioner.survey())

    def update_host(self, found: FoundDevices) -> None:
        """Accept the fresh binderfs that ``aosp-plugin provision`` has mounted in place of a phone's former one."""
        self._store.renew(binder_devices(replaced_phones(found) & self._mounted))


def replaced_phones(found: FoundDevices) -> set[str]:
    """Return the phones whose binder devices are on another file system than before."""
    return {name.partition("/")[0] for name, reason in found.reasons.items() if reason is Reason.REPLACED}


def binder_devices(phones: Iterable[str]) -> list[str]:
    """Return the names of the binder devices of phones."""
    return [f"{phone}/{name}" for phone in phones for name in PHONE_BINDER_DEVICES]
