"""The devices of a resource: grouped from binder devices, completely after a full scan, incrementally otherwise."""

from __future__ import annotations

import logging
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aosp_plugin.binder.devices import sets
from aosp_plugin.binder.discovery import health
from aosp_plugin.binder.discovery.names import name_problem, natural_key, should_merge
from aosp_plugin.framework.devices import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aosp_plugin.backend.shared_paths import SharedFiles
    from aosp_plugin.binder.devices.numa import NumaMap
    from aosp_plugin.binder.devices.sets import DeviceSet, Layout
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.discovery.health import Problem, Reason
    from aosp_plugin.binder.discovery.history import TrackedDevice

T = TypeVar("T")

LOG = logging.getLogger(__name__)


class DeviceTable(NamedTuple):
    """The devices as of one scan. Immutable: shared by all threads."""

    order: Sequence[str] = ()
    """IDs of the device sets in natural order, without replicas."""
    sets: Mapping[str, DeviceSet] = {}
    """Device sets by ID."""
    devices: Sequence[Device] = ()
    """Advertised devices in the order of the sets, one for each replica."""
    numa_nodes: Mapping[str, tuple[int, ...]] = {}
    """NUMA nodes by ID, of the device sets that have any."""


class Scanned(NamedTuple):
    """The result of a scan. Immutable: shared by all threads."""

    table: DeviceTable
    tracked: Mapping[str, TrackedDevice]
    """The binder devices by name."""
    shared: SharedFiles
    """What containers get besides binder devices."""

    def by_spread_device(self) -> dict[str, list[str]]:
        """Return the IDs of the devices that have each known spread device, without replicas, by its path."""
        spread = self.shared.spread
        ids: dict[str, list[str]] = {path: [] for path in spread.known}
        for device_id in self.table.order if spread.known else ():
            ids[spread.device(self.table.sets[device_id].number)].append(device_id)
        return ids


def existing(group: DeviceSet, tracked: Mapping[str, TrackedDevice]) -> list[BinderDevice]:
    """Return the binder devices of a device set that exist and respond."""
    members = [tracked[name].device for name in group.members if name in tracked]
    return [device for device in members if device.identity is not None]


class DeviceTableBuilder:
    """Builds the device table of one resource."""

    def __init__(
        self,
        layout: Layout,
        numa: NumaMap,
        replicas: int,
        *,
        reason: Callable[[str], Reason | None],
        exists: Callable[[str], bool],
        shared: Callable[[], SharedFiles],
        problem: Callable[[DeviceSet], Problem | None],
    ) -> None:
        """``reason`` returns why a binder device is unhealthy, ``exists`` whether it is to be listed.

        ``shared`` returns what containers get besides binder devices, ``problem`` why a whole device is unhealthy.
        """
        self._layout = layout
        self._numa = numa
        self._replicas = replicas
        self._reason = reason
        self._exists = exists
        self._shared = shared
        self._problem = problem
        self._skipped: set[str] = set()

    def build(self, names: Sequence[str], previous: DeviceTable) -> DeviceTable:
        """Return the table for the binder devices ``names``, in natural order; ``previous`` if nothing has changed."""
        by_id = {group.id: group for group in self._layout.sets(names) if not self._is_too_long(group.id)}
        numa_nodes = {group.id: nodes for group in by_id.values() if (nodes := self._numa_nodes(group))}
        devices = [device for group in by_id.values() for device in self._devices(group, numa_nodes.get(group.id, ()))]
        if devices == previous.devices and by_id == previous.sets:
            return previous
        return DeviceTable(list(by_id), by_id, devices, numa_nodes)

    def update(self, table: DeviceTable, changed: Collection[str], names: Sequence[str]) -> DeviceTable:
        """Return the table after a change of the binder devices ``changed``; ``names`` are all binder devices."""
        if not should_merge(changed, names):
            return self.build(names, table)
        order, devices = list(table.order), list(table.devices)
        new_sets: dict[str, DeviceSet | None] = {}
        new_numa_nodes: dict[str, tuple[int, ...] | None] = {}
        for group in self._layout.sets(changed):
            keep = any(map(self._exists, group.members)) and not self._is_too_long(group.id)
            numa_nodes = self._numa_nodes(group)
            index = bisect_left(order, natural_key(group.id), key=natural_key)
            old = group.id in table.sets
            order[index : index + old] = [group.id] if keep else []
            first, last = index * self._replicas, (index + old) * self._replicas
            devices[first:last] = self._devices(group, numa_nodes) if keep else []
            new_sets[group.id] = group if keep else None
            new_numa_nodes[group.id] = numa_nodes if keep and numa_nodes else None
        return DeviceTable(order, _updated(table.sets, new_sets), devices, _updated(table.numa_nodes, new_numa_nodes))

    def _numa_nodes(self, group: DeviceSet) -> tuple[int, ...]:
        numa_nodes = self._numa.of(group.numbered) if self._numa.ranges else ()
        spread = self._shared().spread
        return numa_nodes or (spread.numa_node(group.number) if spread.numa_nodes else ())

    def _devices(self, group: DeviceSet, numa_nodes: tuple[int, ...]) -> list[Device]:
        reasons = [*map(self._reason, group.members)]
        problem = self._problem(group)
        if any(reasons):
            members = list(zip(group.members, reasons, strict=True))
            problem = health.first(health.aggregate(group.id, members), problem)
        reason, detail = problem or ("", "")
        return [Device(id_, reason, numa_nodes, detail) for id_ in sets.replica_ids(group.id, self._replicas)]

    def _is_too_long(self, device_id: str) -> bool:
        """Return whether the IDs of a device's replicas are too long. Logged once per device."""
        if self._replicas == 1:
            return False
        problem = name_problem(sets.replica_ids(device_id, self._replicas)[-1])
        if problem is not None and device_id not in self._skipped:
            self._skipped.add(device_id)
            LOG.warning("device skipped", extra={"device": device_id, "reason": f"replica ID too long: {problem}"})
        return problem is not None


def _updated(mapping: Mapping[str, T], values: Mapping[str, T | None]) -> Mapping[str, T]:
    """Return the mapping with these values, without keys whose value is None; the same object if nothing changes."""
    if all(mapping.get(key) == value for key, value in values.items()):
        return mapping
    merged = {**mapping, **values}
    return {key: value for key, value in merged.items() if value is not None}
