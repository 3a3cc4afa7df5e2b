"""When the state of each device began. A state begins when the plugin notices it."""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Owner

PodsByDevice = Mapping[str, tuple[Owner, ...]]  # by device ID


class Since(NamedTuple):
    """When each state began, in seconds since the epoch. Immutable; may be read in any thread."""

    unhealthy: Mapping[str, float] = {}
    """By device ID, also for devices that are truncated from the kubelet's list."""
    allocated: Mapping[str, float] = {}
    """By device ID: when the present owners got it."""
    gone: Mapping[str, float] = {}
    """By ID of a device that pods have and that no longer exists."""


class Ages:
    """Keeps ``since`` of one resource current. For the event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch."""
        self._clock = clock
        self._owners: PodsByDevice = {}
        self.since = Since()
        """Replaced by a single assignment; may be read in any thread."""

    def read(self, snapshot: Snapshot, owners: PodsByDevice) -> None:
        """Compare the devices and the pods that have them with those of the last call."""
        began, now = self.since, self._clock()
        truncated = itertools.islice(snapshot.devices, len(snapshot.devices) - snapshot.truncated, None)
        unhealthy = (*(device.id for device in snapshot.unhealthy), *truncated)
        gone = owners.keys() - snapshot.devices.keys() if snapshot.revision else ()
        same = {device_id for device_id, pods in owners.items() if self._owners.get(device_id) == pods}
        self._owners = owners
        self.since = Since(
            {device_id: began.unhealthy.get(device_id, now) for device_id in unhealthy},
            {device_id: began.allocated[device_id] if device_id in same else now for device_id in owners},
            {device_id: began.gone.get(device_id, now) for device_id in gone},
        )
