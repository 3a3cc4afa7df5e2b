"""Devices that were healthy while the plugin ran and no longer are, and those of them that have recovered."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.framework.devices import Device
    from aosp_plugin.framework.inventory import Snapshot

REMOVED: Final = "removed"
"""Reason of a device that is no longer listed, in addition to the reasons of the backend."""
NAMED: Final = 5
"""Devices that a message names; of the others, it has the number."""


class DeviceChanges(NamedTuple):
    """What has changed from one snapshot to another one, however many there were in between."""

    lost: Mapping[str, str]
    """The reason of each device that was lost, by its ID."""
    recovered: Sequence[str]
    """The devices that had been lost and are healthy now."""
    still_lost: int
    """Number of devices that were lost earlier and are not healthy now."""


class LostDevices:
    """The lost devices of one resource. Not for several threads at a time."""

    def __init__(self) -> None:
        self._seen: Snapshot | None = None
        self._lost: dict[str, str] = {}

    @property
    def revision(self) -> int:
        """The revision of the snapshot that was compared last; 0 before the first one."""
        return self._seen.revision if self._seen else 0

    def compare(self, snapshot: Snapshot) -> DeviceChanges:
        """Compare a snapshot with the previous one. The first one is where it begins: it has lost no device.

        Takes milliseconds with 10,000 devices: for a worker thread.
        """
        before, self._seen = self._seen, snapshot
        if before is None:
            return DeviceChanges({}, (), 0)
        reasons = {device.id: device.reason for device in snapshot.unhealthy}
        reasons |= dict.fromkeys(before.devices.keys() - snapshot.devices.keys(), REMOVED)
        lost = {
            device_id: reason
            for device_id, reason in reasons.items()
            if device_id not in self._lost and _is_healthy(before.devices.get(device_id))
        }
        recovered = [device_id for device_id in self._lost if _is_healthy(snapshot.devices.get(device_id))]
        for device_id in recovered:
            del self._lost[device_id]
        still_lost = len(self._lost)
        self._lost |= lost
        return DeviceChanges(lost, recovered, still_lost)


def _is_healthy(device: Device | None) -> bool:
    return device is not None and device.healthy


def lost_message(resource: str, changes: DeviceChanges, snapshot: Snapshot) -> str:
    """Return what an Event says of lost devices: their number by reason, some names, and how many are left."""
    counts = collections.Counter(changes.lost.values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    return (
        f"{_number(len(changes.lost))} of {resource} lost: {reasons} ({named([*changes.lost])}); "
        f"{snapshot.healthy} of {len(snapshot.devices)} are healthy"
    )


def recovered_message(resource: str, changes: DeviceChanges, snapshot: Snapshot) -> str:
    """Return what an Event says of devices that have recovered."""
    remaining = changes.still_lost + len(changes.lost)
    rest = f"; {_number(remaining)} still lost" if remaining else ""
    return (
        f"{_number(len(changes.recovered))} of {resource} healthy again ({named(changes.recovered)}){rest}; "
        f"{snapshot.healthy} of {len(snapshot.devices)} are healthy"
    )


def named(ids: Sequence[str]) -> str:
    """Return the first few IDs, and the number of the others."""
    rest = f" and {len(ids) - NAMED} others" if len(ids) > NAMED else ""
    return f"{', '.join(ids[:NAMED])}{rest}"


def _number(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"
