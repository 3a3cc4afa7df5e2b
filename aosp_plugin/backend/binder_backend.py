"""Binder devices as a backend of the framework, for the device plugin API.

``allocate`` maps the IDs of devices back to binder devices, and returns what a container gets for them
(``container_edits``), as of the last scan.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from aosp_plugin.backend.encoded_edits import EncodedEditsBuilder
from aosp_plugin.backend.host_devices import HostDevices
from aosp_plugin.binder.devices import preference
from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.errors import CdiError, HostError, UnhealthyDeviceError
from aosp_plugin.framework.deviceplugin.preference_request import AvailableIds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aosp_plugin.backend.container_edits import AllocatedDevice
    from aosp_plugin.backend.device_table import Scanned
    from aosp_plugin.backend.encoded_edits import EncodedDevice
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.config import Resource
    from aosp_plugin.framework.edits import ContainerEdits

LOG = logging.getLogger(__name__)


class BinderBackend(HostDevices):
    """The binder devices of one resource on this host."""

    get_preferred_allocation_available = True

    def __init__(
        self, host: Host, resource: Resource, *, cdi_dir: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """See ``HostDevices``."""
        super().__init__(host, resource, cdi_dir=cdi_dir, clock=clock)
        self._encoded_edits = EncodedEditsBuilder(resource)
        # The devices that were requested since the last scan, by ID.
        self._requested: tuple[Scanned, dict[str, EncodedDevice]] = (self._scanned, {})
        self._allocated_before: set[str] = set()
        self._reuse_logged = False

    def scan(self, changed: Collection[str] | None = None) -> None:
        """See ``HostDevices.scan``."""
        super().scan(changed)
        self._requested = (self._scanned, {})

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Return what a container gets for the devices ``ids``, as of the last scan. Raises AllocationError."""
        scanned = self._scanned
        return self._edits.for_container(self._allocated(ids, scanned), scanned.shared)

    def allocate_encoded(self, ids: Sequence[str]) -> bytes:
        """Return the same, encoded. Raises AllocationError."""
        scanned = self._scanned
        if not self._health.is_as_of(scanned):
            return self._encoded_edits.encoded(self._allocated(ids, scanned), scanned.shared)
        devices = self._as_of_scan(ids, scanned)
        if not self._reuse_logged:
            self._log_reuse([device.device.id for device in devices])
        return self._encoded_edits.joined(devices, scanned.shared)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Choose consecutive devices, or the least shared replicas; see ``binder.devices.preference``."""
        table, replicas = self._scanned.table, self._resource.replicas
        search = available.starting_with if isinstance(available, AvailableIds) and available.is_long else None
        if replicas > 1:
            return preference.spread(
                table.order, replicas, available, must_include, size, table.numa_nodes, search=search
            )
        return preference.prefer(table.order, available, must_include, size, table.numa_nodes, search=search)

    def pre_start(self, ids: Sequence[str]) -> None:
        """Recreate the binder devices of ``ids`` if ``recreate`` is on-start. Idempotent. Raises UnhealthyDeviceError.

        A binder device whose recreation failed may still be open by the last tenant. It is unhealthy until
        ``update_host`` has recreated it.
        """
        if self._recreator is None:
            return
        for group in self._sets_of(ids, self._scanned.table):
            try:
                self._recreator.recreate(group)
            except HostError as error:
                raise UnhealthyDeviceError(f"device {group.id!r} could not be recreated: {error}") from error
        if self._spec is not None:
            try:
                self._spec.rewrite()
            except (OSError, HostError, CdiError) as error:
                raise UnhealthyDeviceError(f"devices {', '.join(ids)} were recreated, but: {error}") from error

    def _allocated(self, ids: Sequence[str], scanned: Scanned) -> list[AllocatedDevice]:
        allocated = [self._usable(group, scanned) for group in self._sets_of(ids, scanned.table)]
        if self._recreator is None and not self._reuse_logged:
            self._log_reuse([device.id for device in allocated])
        return allocated

    def _as_of_scan(self, ids: Sequence[str], scanned: Scanned) -> Sequence[EncodedDevice]:
        """Return the devices with these IDs, each once, in natural order. Raises AllocationError."""
        requested_since, requested = self._requested
        if requested_since is not scanned:  # a scan is ending in the worker thread
            requested = {}
        try:
            devices = [requested[device_id] for device_id in ids]
        except KeyError:
            for device_id in ids:
                if device_id not in requested:
                    requested[device_id] = self._encoded_edits.device(self._device_as_of_scan(device_id, scanned))
            devices = [requested[device_id] for device_id in ids]
        if len(devices) == 1:
            return devices
        by_id = {device.device.id: device for device in devices}  # replicas of a device are the same
        return [by_id[device_id] for device_id in natural_sort([*by_id])]

    def _device_as_of_scan(self, device_id: str, scanned: Scanned) -> AllocatedDevice:
        """Return one device. Raises AllocationError. The table knows which devices are healthy: nearly all."""
        table = scanned.table
        if self._resource.replicas == 1 and device_id in table.sets and device_id not in table.devices.special:
            return self._with_members(table.sets[device_id], scanned)
        (group,) = self._sets_of([device_id], table)
        return self._usable(group, scanned)

    def _log_reuse(self, ids: Sequence[str]) -> None:
        """Log once that a device is not fresh: only the kernel's log says why its next context manager is refused."""
        reused = self._allocated_before.intersection(ids)
        self._allocated_before.update(ids)
        if reused:
            self._reuse_logged = True
            LOG.info(
                "device allocated again without recreation, a context manager of another user gets EPERM",
                extra={
                    "resource": self.resource_name,
                    "device": min(reused, key=ids.index),
                    "remedy": "recreate: on-start",
                },
            )
