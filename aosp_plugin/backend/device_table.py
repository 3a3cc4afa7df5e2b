"""The devices of a resource: grouped from binder devices, completely after a full scan, incrementally otherwise.

Most devices are healthy, have no NUMA node, and are never asked for. So the table has an ID for each, and more for the
others only.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aosp_plugin.binder.devices import sets
from aosp_plugin.binder.devices.sets import DeviceSets
from aosp_plugin.binder.discovery.names import name_problem, natural_key, should_merge
from aosp_plugin.framework.devices import Device, Devices

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from aosp_plugin.backend.shared_paths import SharedFiles
    from aosp_plugin.binder.devices.numa import NumaMap
    from aosp_plugin.binder.devices.sets import DeviceSet, Layout
    from aosp_plugin.binder.devices.spread import Spread
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.discovery.health import Problem
    from aosp_plugin.binder.discovery.history import TrackedDevices

T = TypeVar("T")

LOG = logging.getLogger(__name__)


class DeviceTable(NamedTuple):
    """The devices as of one scan. Immutable: shared by all threads."""

    order: Sequence[str] = ()
    """IDs of the device sets in natural order, without replicas."""
    sets: Mapping[str, DeviceSet] = {}
    """Device sets by ID."""
    devices: Devices = Devices(())
    """Advertised devices in the order of the sets, one for each replica."""
    numa_nodes: Mapping[str, tuple[int, ...]] = {}
    """NUMA nodes by ID, of the device sets that have any."""


class Scanned(NamedTuple):
    """The result of a scan. Immutable: shared by all threads."""

    table: DeviceTable
    tracked: TrackedDevices
    """The binder devices by name."""
    shared: SharedFiles
    """What containers get besides binder devices."""
    held: frozenset[str] = frozenset()
    """The IDs of the devices that pods have through the other API."""

    def by_spread_device(self) -> dict[str, list[str]]:
        """Return the IDs of the devices that have each known spread device, without replicas, by its path."""
        spread = self.shared.spread
        ids: dict[str, list[str]] = {path: [] for path in spread.known}
        for device_id in self.table.order if spread.known else ():
            ids[spread.device(self.table.sets[device_id].number)].append(device_id)
        return ids


def existing(group: DeviceSet, tracked: TrackedDevices) -> list[BinderDevice]:
    """Return the binder devices of a device set that exist and respond."""
    return [tracked.device(name) for name in group.members if name in tracked and tracked.found[name][0].exists]


class ExistingBinderDevices(Mapping[str, "list[BinderDevice]"]):
    """The existing binder devices of each device by its ID, without replicas, as of one scan. Made on demand."""

    def __init__(self, scanned: Scanned) -> None:
        self._scanned = scanned

    def __getitem__(self, device_id: str) -> list[BinderDevice]:
        """Return the existing binder devices of a device. Raises KeyError."""
        return existing(self._scanned.table.sets[device_id], self._scanned.tracked)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the IDs in natural order."""
        return iter(self._scanned.table.order)

    def __len__(self) -> int:
        """Return the number of devices."""
        return len(self._scanned.table.order)


class DeviceTableBuilder:
    """Builds the device table of one resource."""

    def __init__(
        self,
        layout: Layout,
        numa: NumaMap,
        replicas: int,
        *,
        exists: Callable[[str], bool],
        spread: Callable[[], Spread],
        problem: Callable[[DeviceSet], Problem | None],
        suspects: Callable[[], Collection[str] | None],
    ) -> None:
        """``exists`` returns whether a binder device is to be listed, ``spread`` the present spread devices.

        ``problem`` returns why a device is unhealthy. ``suspects`` returns the IDs of all unhealthy devices whose
        members were found, and perhaps others; None if any may be unhealthy.
        """
        self._layout = layout
        self._numa = numa
        self._replicas = replicas
        self._exists = exists
        self._spread = spread
        self._problem = problem
        self._suspects = suspects
        self._skipped: set[str] = set()

    def build(self, names: Sequence[str], known: AbstractSet[str]) -> DeviceTable:
        """Return the table for the binder devices ``names``, in natural order; ``known`` has the same names."""
        order = self._layout.ids(names)
        alone = order is names
        if self._replicas > 1:
            order = [set_id for set_id in order if not self._is_too_long(set_id)]
        known_ids = known if order is names else frozenset(order)
        special: dict[str, Device] = {}
        all_numa_nodes: dict[str, tuple[int, ...]] = {}
        for group in self._not_plain(order, known_ids, frozenset() if alone else frozenset(names)):
            numa_nodes = self._numa_nodes(group)
            if numa_nodes:
                all_numa_nodes[group.id] = numa_nodes
            special.update(self._special(group, numa_nodes))
        ids = order if self._replicas == 1 else [*chain.from_iterable(map(self._replica_ids, order))]
        devices = Devices(ids, special, known_ids if ids is order else None)
        return DeviceTable(order, DeviceSets(self._layout, known_ids), devices, all_numa_nodes)

    def update(
        self, table: DeviceTable, changed: Collection[str], names: Sequence[str], known: AbstractSet[str]
    ) -> DeviceTable:
        """Return the table after a change of the binder devices ``changed``; the others are those of ``build``."""
        if not should_merge(changed, names):
            return self.build(names, known)
        alone = self._replicas == 1 and self._layout.ids(names) is names
        order, ids = ([], []) if alone else ([*table.order], [*table.devices.ids])
        new_special: dict[str, Device | None] = {}
        new_numa_nodes: dict[str, tuple[int, ...] | None] = {}
        for group in self._layout.sets([*changed]):
            keep = any(map(self._exists, group.members)) and not self._is_too_long(group.id)
            if not alone:
                self._insert_or_delete(order, ids, group.id, keep=keep)
            numa_nodes = self._numa_nodes(group) if keep else ()
            new_special.update(dict.fromkeys(self._replica_ids(group.id)))
            new_special.update(self._special(group, numa_nodes) if keep else {})
            new_numa_nodes[group.id] = numa_nodes or None
        special = _updated(table.devices.special, new_special)
        all_numa_nodes = _updated(table.numa_nodes, new_numa_nodes)
        if alone:
            return DeviceTable(names, DeviceSets(self._layout, known), Devices(names, special, known), all_numa_nodes)
        return DeviceTable(order, DeviceSets(self._layout, frozenset(order)), Devices(ids, special), all_numa_nodes)

    def _not_plain(self, order: Sequence[str], known: AbstractSet[str], names: frozenset[str]) -> Iterable[DeviceSet]:
        """Return the devices that may be unhealthy, or on a NUMA node.

        ``order`` and ``known`` have the IDs of all devices, ``names`` the binder devices if devices have several.
        """
        suspects = None if self._numa.ranges or self._spread().numa_nodes else self._suspects()
        if suspects is None:
            return map(self._layout.set_of, order)
        suspicious = [self._layout.set_of(set_id) for set_id in suspects if set_id in known]
        if not names:
            return suspicious
        incomplete = (group for group in map(self._layout.set_of, order) if not names.issuperset(group.members))
        return chain(suspicious, incomplete)

    def _insert_or_delete(self, order: list[str], ids: list[str], set_id: str, *, keep: bool) -> None:
        """Insert a device and its replicas, or delete them, unless they are as they have to be."""
        index = bisect_left(order, natural_key(set_id), key=natural_key)
        old = order[index : index + 1] == [set_id]
        if old is not keep:
            order[index : index + old] = [set_id] if keep else []
            first = index * self._replicas
            ids[first : first + old * self._replicas] = self._replica_ids(set_id) if keep else []

    def _replica_ids(self, set_id: str) -> list[str]:
        return sets.replica_ids(set_id, self._replicas)

    def _numa_nodes(self, group: DeviceSet) -> tuple[int, ...]:
        numa_nodes = self._numa.of(group.numbered) if self._numa.ranges else ()
        spread = self._spread()
        return numa_nodes or (spread.numa_node(group.number) if spread.numa_nodes else ())

    def _special(self, group: DeviceSet, numa_nodes: tuple[int, ...]) -> dict[str, Device]:
        """Return the replicas of a device by ID; nothing if it is healthy and on no NUMA node."""
        problem = self._problem(group)
        if problem is None and not numa_nodes:
            return {}
        reason, detail = problem or ("", "")
        return {id_: Device(id_, reason, numa_nodes, detail) for id_ in self._replica_ids(group.id)}

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
