"""Binder devices as a backend of the framework, for the device plugin API.

``allocate`` maps the IDs of devices back to binder devices, and returns what a container gets for them
(``container_edits``), as of the last scan.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aosp_plugin.backend.container_edits import AllocatedDevice
from aosp_plugin.backend.host_devices import HostDevices
from aosp_plugin.binder.devices import preference
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.config.keys import Resource
from aosp_plugin.config.values import Api
from aosp_plugin.framework.devices import ContainerEdits
from aosp_plugin.framework.errors import CdiError, UnhealthyDeviceError

if TYPE_CHECKING:
    from aosp_plugin.backend.scanned import Scanned

LOG = logging.getLogger(__name__)


class BinderBackend(HostDevices):
    """The binder devices of one resource on this host."""

    get_preferred_allocation_available = True

    def __init__(
        self, host: Host, resource: Resource, *, cdi_dir: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """See ``HostDevices``."""
        super().__init__(host, resource, cdi_dir=cdi_dir, clock=clock)
        self._allocated_before: set[str] = set()
        self._reuse_logged = False

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Return what a container gets for the devices ``ids``, as of the last scan. Raises AllocationError."""
        scanned = self._scanned
        return self._edits.for_container(self._allocated(ids, scanned), scanned.shared)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Choose consecutive devices, or the least shared replicas; see ``binder.devices.preference``."""
        scanned, replicas = self._scanned, self._resource.replicas
        order = [*scanned.sets]
        if replicas > 1:
            return preference.spread(order, replicas, available, must_include, size, scanned.numa_nodes)
        return preference.prefer(order, available, must_include, size, scanned.numa_nodes)

    def pre_start(self, ids: Sequence[str]) -> None:
        """Recreate the binder devices of ``ids`` if ``recreate`` is on-start. Idempotent. Raises UnhealthyDeviceError.

        A binder device whose recreation failed may still be open by the last tenant. It is unhealthy until
        ``update_host`` has recreated it.
        """
        if self._recreator is None:
            return
        for group in self._sets_of(ids, self._scanned):
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
        allocated = [self._usable(group, scanned) for group in self._sets_of(ids, scanned)]
        if self._recreator is None and not self._reuse_logged:
            self._log_reuse([device.id for device in allocated])
        return allocated

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


def create_backend(host: Host, resource: Resource, *, cdi_dir: str) -> BinderBackend:
    """Return the backend of a resource; a ``ClaimsBackend`` for DRA. The host is not accessed."""
    if resource.api is Api.DEVICE_PLUGIN:
        return BinderBackend(host, resource, cdi_dir=cdi_dir)
    from aosp_plugin.backend.claims_backend import ClaimsBackend  # noqa: PLC0415 - only DRA requires it

    return ClaimsBackend(host, resource, cdi_dir=cdi_dir)
