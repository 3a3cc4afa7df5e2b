"""Why the devices of a resource are unhealthy, from all that has a say in it.

``binder.discovery.health`` has the rules for binder devices and device sets. Others come from recreation, the CDI spec,
phones, shared devices, and pods that have devices through another API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery import health
from aosp_plugin.binder.discovery.health import Reason

if TYPE_CHECKING:
    from aosp_plugin.backend.device_table import Scanned
    from aosp_plugin.backend.holds import Holds
    from aosp_plugin.backend.phones import Phones
    from aosp_plugin.backend.recreation import Recreator
    from aosp_plugin.backend.shared_paths import SharedFiles
    from aosp_plugin.backend.spec_writer import SpecWriter
    from aosp_plugin.binder.devices.sets import DeviceSet, Layout
    from aosp_plugin.binder.discovery.health import Problem
    from aosp_plugin.binder.discovery.history import TrackedDevices


class DeviceHealth:
    """The health of the devices of one resource. For any thread, except for ``take_stale``."""

    def __init__(
        self,
        layout: Layout,
        phones: Phones | None,
        recreator: Recreator | None,
        spec: SpecWriter | None,
        holds: Holds,
    ) -> None:
        """None for what the resource does not have."""
        self._layout = layout
        self._phones = phones
        self._recreator = recreator
        self._spec = spec
        self._holds = holds
        self._sources = [source for source in (recreator, spec, phones) if source is not None]

    def of(self, group: DeviceSet, tracked: TrackedDevices, shared: SharedFiles) -> Problem | None:
        """Return why a device is unhealthy, None if it is healthy, as of the scan with these results."""
        members = [(name, self._reason(name, tracked)) for name in group.members]
        return health.first(health.aggregate(group.id, members), self.problem(group, shared))

    def problem(self, group: DeviceSet, shared: SharedFiles) -> Problem | None:
        """Return why a device as a whole is unhealthy, whatever its binder devices are."""
        phones = None if self._phones is None else self._phones.problem(group.id)
        return health.first(shared.problem(group), self._holds.problem(group), phones)

    def suspects(self, tracked: TrackedDevices, shared: SharedFiles) -> set[str] | None:
        """Return the IDs of all unhealthy devices whose members were found, and perhaps others; None if any may be."""
        if self._phones is not None or self._recreator is not None or shared.missing or shared.spread.lost:
            return None
        lacking = () if self._spec is None else self._spec.lacking
        return {*self._layout.ids([*tracked.unhealthy(), *lacking]), *self._holds.ids}

    def is_stale(self, scanned: Scanned) -> bool:
        """Return whether the health of a device has changed since a scan, without a change of its files."""
        return self._holds.ids != scanned.held or any(source.changed for source in self._sources)

    def take_stale(self, scanned: Scanned, held: frozenset[str]) -> set[str]:
        """Return the binder devices whose health has changed in this way, if these devices are held now.

        What others than the holds have changed is forgotten. For the worker thread.
        """
        stale: set[str] = set().union(*(source.changed for source in self._sources))
        for source in self._sources:
            source.changed = set()
        groups = map(scanned.table.sets.get, scanned.held ^ held)
        return stale.union(*(group.members for group in groups if group is not None))

    def _reason(self, name: str, tracked: TrackedDevices) -> Reason | None:
        """Return why a binder device is unhealthy."""
        found = tracked.found.get(name)
        reason = Reason.MISSING if found is None else tracked.reason(name)
        if self._phones is not None:
            reason = self._phones.reason(name, reason)
        if found is None or reason is not None:
            return reason
        if self._recreator is not None:
            reason = self._recreator.reason(name, found[0].kind)
        if reason is None and self._spec is not None and name in self._spec.lacking:
            reason = Reason.NOT_IN_CDI_SPEC
        return reason
