"""When the state of each device began. A state begins when the plugin notices it."""

import itertools
import time
from collections.abc import Callable, Mapping

from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Owner

PodsByDevice = Mapping[str, tuple[Owner, ...]]  # by device ID


class Ages:
    """Keeps ``since`` of one resource current. For the event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch."""
        self._clock = clock
        self._states: Mapping[str, tuple[Owner, ...] | None] = {}
        """The owners of each allocated device; None for devices that are unhealthy or gone."""
        self.since: Mapping[str, float] = {}
        """When the state of each of these devices began. Replaced by a single assignment; may be read in any thread."""
        self.gone = 0
        """Number of devices that pods have and that no longer exist."""

    def read(self, snapshot: Snapshot, owners: PodsByDevice) -> None:
        """Compare the devices and the pods that have them with those of the last call."""
        truncated = itertools.islice(snapshot.devices, len(snapshot.devices) - snapshot.truncated, None)
        gone = owners.keys() - snapshot.devices.keys() if snapshot.revision else ()
        unhealthy = (*(device.id for device in snapshot.unhealthy), *truncated, *gone)
        before, self._states = self._states, {**owners, **dict.fromkeys(unhealthy)}
        began, now = self.since, self._clock()
        same = {device_id for device_id in before.keys() & self._states if before[device_id] == self._states[device_id]}
        self.since = {device_id: began[device_id] if device_id in same else now for device_id in self._states}
        self.gone = len(gone)
