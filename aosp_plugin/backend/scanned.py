"""The devices of a resource as of one scan. Immutable: shared by all threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.backend.container_edits import AllocatedDevice
from aosp_plugin.backend.health import State
from aosp_plugin.backend.shared_paths import SharedFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.binder.devices.sets import DeviceSet
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.discovery.health import Problem, Reason
    from aosp_plugin.framework.devices import Device


class Scanned(NamedTuple):
    """The result of a scan."""

    sets: Mapping[str, DeviceSet] = {}
    """The device sets by ID, without replicas, in natural order."""
    binder_devices: Mapping[str, BinderDevice] = {}
    """The binder devices by name, missing ones included."""
    reasons: Mapping[str, Reason] = {}
    """Why binder devices are unhealthy, of those that are, by name."""
    shared: SharedFiles = SharedFiles()
    """What containers get besides binder devices."""
    state: State = State()
    """What has a say in the health of the devices besides the above."""
    problems: Mapping[str, Problem] = {}
    """Why devices are unhealthy, of those that are, by ID."""
    numa_nodes: Mapping[str, tuple[int, ...]] = {}
    """NUMA nodes by ID, of the devices that are on any."""
    devices: Sequence[Device] = ()
    """The advertised devices in the order of the sets, one for each replica."""

    def existing(self, group: DeviceSet) -> list[BinderDevice]:
        """Return the binder devices of a device that exist."""
        found = map(self.binder_devices.get, group.members)
        return [device for device in found if device is not None and device.identity is not None]

    def allocated(self, group: DeviceSet) -> AllocatedDevice:
        """Return what a container gets with a device: its existing binder devices, and its spread device."""
        spread = self.shared.spread
        return AllocatedDevice(group.id, self.existing(group), spread.device(group.number) if spread.known else "")
