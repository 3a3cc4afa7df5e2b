"""The devices that the nodes make: grouped anew after a look at everything, and where they changed after any other.

Which nodes there are, and what each is worth, is for ``binder.known`` to know; which belong together, for
``binder.sets``.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aosp_plugin.binder.devices import sets
from aosp_plugin.binder.discovery.names import name_problem, natural_key, should_merge
from aosp_plugin.framework.inventory import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aosp_plugin.backend.settings import Settings
    from aosp_plugin.binder.devices.sets import DeviceSet
    from aosp_plugin.binder.discovery.health import Reason

T = TypeVar("T")

LOG = logging.getLogger(__name__)


class DeviceTable(NamedTuple):
    """The devices as of one look."""

    order: Sequence[str] = ()
    """The IDs of the sets in natural order; a replica has none of its own."""
    sets: Mapping[str, DeviceSet] = {}
    """By ID."""
    devices: Sequence[Device] = ()
    """As many for each set as there are replicas, in the order of the sets."""
    numa_nodes: Mapping[str, tuple[int, ...]] = {}
    """Of the sets that have any."""


class DeviceTableBuilder:
    """Makes views of one resource."""

    def __init__(
        self, settings: Settings, reason: Callable[[str], Reason | None], known: Callable[[str], bool]
    ) -> None:
        """``reason`` says why a node can't be handed out, ``known`` whether there is anything to say of it."""
        self._layout = settings.layout
        self._replicas = settings.replicas
        self._numa = settings.numa
        self._reason = reason
        self._known = known
        self._left_out: set[str] = set()

    def of(self, names: Sequence[str], view: DeviceTable) -> DeviceTable:
        """Return the devices of the nodes ``names``, which are in natural order; ``view`` where it says the same."""
        every = {one.id: one for one in self._layout.sets(names) if not self._too_long(one.id)}
        near = {one.id: place for one in every.values() if (place := self._place(one))}
        devices = [device for one in every.values() for device in self._devices(one, near.get(one.id, ()))]
        same = devices == view.devices and every == view.sets
        return view if same else DeviceTable(list(every), every, devices, near)

    def after(self, view: DeviceTable, changed: Collection[str], names: Sequence[str]) -> DeviceTable:
        """Return what becomes of ``view`` once these nodes have changed; ``names`` are all there are now.

        Looks at nothing else where they are few.
        """
        if not should_merge(changed, names):
            return self.of(names, view)
        order, devices = list(view.order), list(view.devices)
        every: dict[str, DeviceSet | None] = {}
        near: dict[str, tuple[int, ...] | None] = {}
        for one in self._layout.sets(changed):
            kept = self._is_told(one)
            place = self._place(one)
            at = bisect_left(order, natural_key(one.id), key=natural_key)
            there = one.id in view.sets
            order[at : at + there] = [one.id] if kept else []
            devices[at * self._replicas : (at + there) * self._replicas] = self._devices(one, place) if kept else []
            every[one.id] = one if kept else None
            near[one.id] = place if kept and place else None
        return DeviceTable(order, _updated(view.sets, every), devices, _updated(view.numa_nodes, near))

    def _place(self, one: DeviceSet) -> tuple[int, ...]:
        return self._numa.of(one.numbered) if self._numa.ranges else ()

    def _is_told(self, one: DeviceSet) -> bool:
        return any(map(self._known, one.nodes)) and not self._too_long(one.id)

    def _devices(self, one: DeviceSet, near: tuple[int, ...]) -> list[Device]:
        reasons = [*map(self._reason, one.nodes)]
        ill = sets.worst(list(zip(one.nodes, reasons, strict=True))) if any(reasons) else None
        reason, detail = (ill[0], told(one, *ill)) if ill is not None else ("", "")
        if self._replicas == 1:
            return [Device(one.id, reason, near, detail)]
        return [Device(replica, reason, near, detail) for replica in sets.replica_ids(one.id, self._replicas)]

    def _too_long(self, device_id: str) -> bool:
        """Say whether the IDs of a device's replicas are too long, and once that it is left out for that."""
        if self._replicas == 1:
            return False
        problem = name_problem(sets.replica_ids(device_id, self._replicas)[-1])
        if problem is not None and device_id not in self._left_out:
            self._left_out.add(device_id)
            LOG.warning("a device is left out, as its replicas can't be told: %s", problem, extra={"device": device_id})
        return problem is not None


def _updated(mapping: Mapping[str, T], values: Mapping[str, T | None]) -> Mapping[str, T]:
    """Return the mapping with these values, without the keys that have none now; itself where that is what it has."""
    if all(mapping.get(key) == value for key, value in values.items()):
        return mapping
    merged = {**mapping, **values}
    return {key: value for key, value in merged.items() if value is not None}


def told(one: DeviceSet, reason: Reason, detail: str) -> str:
    """Return what is wrong with a device: the reason, and with a set what it is about."""
    return f"{reason}" if one.nodes == (one.id,) else f"{reason}: {detail}"
