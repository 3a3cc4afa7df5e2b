"""The phones of one resource: mounted after scans, and removed when the configured count is lower."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.devices.phones import PHONE_BINDER_DEVICES, phone_id
from aosp_plugin.binder.devices.sets import replica_ids
from aosp_plugin.binder.discovery.health import Reason
from aosp_plugin.binder.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from aosp_plugin.backend.device_table import Scanned
    from aosp_plugin.backend.holds import Holds
    from aosp_plugin.binder.discovery.health import Problem
    from aosp_plugin.binder.discovery.history import TrackedDevices
    from aosp_plugin.binder.discovery.store import DeviceStore
    from aosp_plugin.binder.provision.phones import PhoneProvisioner

LOG = logging.getLogger(__name__)

SURPLUS_INTERVAL = 10.0
"""Seconds between two scans while there are phones beyond the configured count that may have become free."""

REMOVALS = 100
"""Phones that are removed after one scan. Containers that start wait for it."""


class Allocated(NamedTuple):
    """Which devices pods have, according to the kubelet."""

    ids: frozenset[str]
    """As the plugin advertises them, so with the number of a replica if there are several."""
    asked: float
    """When the kubelet was asked, in seconds of ``time.monotonic``."""


class Phones:
    """Keeps ``count`` phones. For the worker thread, except for ``reason`` and the setting of ``allocated``."""

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
        self._all_due = True
        self._clock = clock
        self._phones = {phone_id(number): binder_devices([phone_id(number)]) for number in range(count)}
        self._surplus_since: dict[str, float] = {}
        self.allocated: Allocated | None = None
        """None while it is unknown. Replaced by a single assignment."""
        self.changed: set[str] = set()
        """Binder devices whose ``reason`` has changed, or that were removed; to be emptied by the reader."""

    @property
    def surplus(self) -> bool:
        """Whether there are phones beyond the configured count. May be read in any thread."""
        return bool(self._surplus_since)

    def reason(self, name: str, reason: Reason | None) -> Reason | None:
        """Return why no container may get the phone with the binder device ``name``; None if one may.

        ``reason`` is why the binder device is unhealthy according to the last scan.
        """
        phone = name.partition("/")[0]
        if phone in self._provisioner.foreign:
            return Reason.FOREIGN_MOUNT
        return reason or (None if phone in self._phones else Reason.SURPLUS)

    def problem(self, phone: str) -> Problem | None:  # noqa: ARG002 - for subclasses
        """Return why a phone is not offered, whatever its binder devices are; None if it is."""
        return None

    def names(self) -> Sequence[str]:
        """Return the names of the binder devices of all phones that are listed, in natural order."""
        return self._store.names

    def is_listed(self, name: str) -> bool:
        """Return whether a binder device is one of ``names``."""
        return name in self._store.tracked

    def check(self) -> None:
        """Check without effect that phones could be mounted. Raises HostError."""
        self._provisioner.check()

    def scan(self, changed: Collection[str] | None) -> None:
        """Read the mounts before the binder devices are scanned, if that is required. Raises HostError."""

    def update_host(self, scanned: Scanned, *, full: bool) -> None:
        """Mount missing phones, and remove surplus ones that are free. Raises HostError.

        A phone that another process of the plugin has mounted again, in a rolling update, does not count as replaced.
        After a scan that was not ``full``, only phones that it did not find healthy are checked.
        """
        before = self._provisioner.foreign
        try:
            self._all_due |= full
            mounted = self._provisioner.provision(self._phones if self._all_due else self._incomplete(scanned.tracked))
            self._all_due = False
        finally:
            self.changed.update(binder_devices(before ^ self._provisioner.foreign))
        mounted += self._replace_those_of_claims()
        found = [phone for phone in replaced_phones(scanned.tracked) if self._provisioner.is_own(phone)]
        self._store.renew(binder_devices([*mounted, *found]))
        if mounted:
            LOG.info("phones mounted", extra={"phones": len(mounted)})
        self._remove_surplus(scanned)
        if self._provisioner.problem:
            raise HostError(self._provisioner.problem)

    def _replace_those_of_claims(self) -> list[str]:
        """Replace the phones that were mounted for ResourceClaims, when no pod has them any more."""
        if self._holds.reported is None:
            return []
        replaced = [phone for phone in self._provisioner.other_api - self._holds.ids if phone in self._phones]
        for phone in replaced:
            self._provisioner.replace(phone)
        return replaced

    def _remove_surplus(self, scanned: Scanned) -> None:
        """Remove surplus phones that were free when the kubelet already knew that they must not be allocated."""
        now = self._clock()
        surplus = [phone for phone in scanned.table.order if phone not in self._phones]
        if surplus and not self._surplus_since:
            LOG.info("surplus phones found, removing free ones", extra={"phones": len(surplus)})
        self._surplus_since = {phone: self._surplus_since.get(phone, now) for phone in surplus}
        for phone in self._provisioner.obstacles.keys() - self._phones.keys() - self._surplus_since.keys():
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
            self.changed.update(binder_devices(removed))
            self._surplus_since = {phone: self._surplus_since[phone] for phone in surplus if phone not in removed}
            LOG.info("surplus phones removed", extra={"phones": len(removed), "remaining": len(self._surplus_since)})

    def _incomplete(self, tracked: TrackedDevices) -> list[str]:
        """Return the phones that lack a healthy binder device, or had an obstacle."""
        healthy = tracked.keys() - tracked.unhealthy()
        obstacles = self._provisioner.obstacles
        return [phone for phone, names in self._phones.items() if phone in obstacles or not healthy.issuperset(names)]


def replaced_phones(tracked: TrackedDevices) -> set[str]:
    """Return the phones whose binder devices are on another file system than before."""
    return {name.partition("/")[0] for name, reason in tracked.unhealthy().items() if reason is Reason.REPLACED}


def binder_devices(phones: Iterable[str]) -> list[str]:
    """Return the names of the binder devices of phones."""
    return [f"{phone}/{name}" for phone in phones for name in PHONE_BINDER_DEVICES]
