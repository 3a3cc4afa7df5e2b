"""Binder devices as a backend of the framework.

``scan`` lets the store read the binder devices (``binder.discovery``) and groups them into devices (``device_table``).
``devices`` returns these. ``allocate`` maps their IDs back to binder devices and returns what a container gets for them
(``container_edits``).
"""

from __future__ import annotations

import functools
import logging
import time
from typing import TYPE_CHECKING

from aosp_plugin.backend.container_edits import AllocatedDevice, EditsBuilder
from aosp_plugin.backend.device_table import DeviceTable, DeviceTableBuilder
from aosp_plugin.backend.recreation import Recreator
from aosp_plugin.binder.devices import numa, preference, sets
from aosp_plugin.binder.discovery import health
from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.binder.discovery.store import DeviceStore
from aosp_plugin.binder.provision.provisioner import DeviceProvisioner, ProvisionSpec
from aosp_plugin.config import NumberedSets, Recreate
from aosp_plugin.errors import BackendError, HostError, UnhealthyDeviceError, UnknownDeviceError
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.cdi.spec_file import SpecFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aosp_plugin.binder.devices.sets import DeviceSet, Layout
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.discovery.health import Reason
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.config import Resource
    from aosp_plugin.framework.edits import ContainerEdits
    from aosp_plugin.framework.inventory import Device

LOG = logging.getLogger(__name__)


class BinderBackend(Backend):
    """The binder devices of one resource on this host."""

    get_preferred_allocation_available = True

    def __init__(
        self, host: Host, resource: Resource, *, cdi_dir: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``cdi_dir`` is the host's directory of CDI specs."""
        self.resource_name = resource.resource_name
        self.scanned_files = resource.scanned_files
        self.creates_devices = resource.provision is not None
        self.pre_start_required = resource.recreate is Recreate.ON_START
        self._host = host
        self._resource = resource
        self._store = _store(host, resource, clock)
        self._recreator = Recreator(host, self._store) if self.pre_start_required else None
        self._provisioner = _provisioner(host, resource, clock)
        self._provisioning_error = ""
        self._edits = EditsBuilder(resource)
        self._cdi_dir = cdi_dir
        self._last_spec: tuple[object, bytes | None] = (None, None)
        self._present = self._edits.shared_paths
        """The shared paths that existed at the last scan."""
        self._table = DeviceTable()
        self._table_builder = DeviceTableBuilder(
            _layout(resource),
            numa.parse(resource.numa),
            resource.replicas,
            reason=self._reason,
            exists=lambda name: self._store.device(name) is not None,
        )

    def devices(self) -> Sequence[Device]:
        """Return the devices in natural order."""
        return self._table.devices

    def directories(self) -> frozenset[str]:
        """Return the device directory, and the directories that its links lead to."""
        return self._store.directories()

    def scan(self, changed: Collection[str] | None = None) -> None:
        """Scan the host, after provisioning; then retry failed recreations and write the CDI spec.

        Raises BackendError, CdiError and OSError.
        """
        self._provision()
        try:
            scanned = self._store.scan(changed)
        except HostError as error:
            raise BackendError(str(error)) from error
        if self._recreator is not None and self._recreator.retry():
            scanned = None
        self._find_shared_paths()
        if scanned is None:
            self._table = self._table_builder.build(self._store.names, self._table)
        elif scanned:
            self._table = self._table_builder.update(self._table, scanned, self._store.names)
        self._write_spec()

    def reset(self) -> None:
        """Make the next scan forget the history: it accepts the binder devices that it finds, and drops the others."""
        self._store.reset()

    def binder_devices(self) -> dict[str, Sequence[BinderDevice]]:
        """Return the existing binder devices of each device, by ID without replicas."""
        table = self._table
        return {device_id: self._existing(table.sets[device_id]) for device_id in table.order}

    def advertised_ids(self, device_id: str) -> list[str]:
        """Return the IDs under which a device is advertised: its own, or those of its replicas."""
        return sets.replica_ids(device_id, self._resource.replicas)

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Return what a container gets for the devices ``ids``. Raises AllocationError.

        Reads each binder device again, because it may have changed since the last scan.
        """
        groups = self._sets_of(ids)
        fresh = self._store.recheck(name for group in groups for name in group.members)
        allocated = []
        for group in groups:
            problem = health.aggregate(group.id, [(name, fresh[name][1]) for name in group.members])
            if problem is not None:
                raise UnhealthyDeviceError(f"device {group.id!r} is unhealthy: {problem.detail}")
            members = [device for name in group.members if (device := fresh[name][0]) is not None]
            allocated.append(AllocatedDevice(group.id, members))
        return self._edits.for_container(allocated, self._present)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Choose consecutive devices, or the least shared replicas; see ``binder.devices.preference``."""
        table, replicas = self._table, self._resource.replicas
        if replicas > 1:
            return preference.spread(table.order, replicas, available, must_include, size, table.numa_nodes)
        return preference.prefer(table.order, available, must_include, size, table.numa_nodes)

    def pre_start(self, ids: Sequence[str]) -> None:
        """Recreate the binder devices of ``ids`` if ``recreate`` is on-start. Idempotent. Raises UnhealthyDeviceError.

        A binder device whose recreation failed may still be open by the last tenant. It is unhealthy until a scan has
        recreated it.
        """
        if self._recreator is None:
            return
        for group in self._sets_of(ids):
            for name in group.members:
                try:
                    self._recreator.recreate(name)
                except HostError as error:
                    raise UnhealthyDeviceError(f"device {group.id!r} could not be recreated: {error}") from error
        if self._edits.needs_spec:
            self._spec.rewrite()

    def check_spec(self) -> None:
        """Check that the CDI spec of the last scan could be written, if the resource requires one. Raises CdiError.

        May block. For a backend whose plugin does not run yet.
        """
        if self._edits.needs_spec:
            content, _ = self._build_spec()
            self._spec.check(content or b"")

    def close(self) -> None:
        """Remove the CDI spec. Provisioned binder devices are kept. Raises CdiError."""
        if self._edits.needs_spec:
            self._spec.close()

    def _sets_of(self, ids: Sequence[str]) -> list[DeviceSet]:
        """Return the device sets of ``ids``, each once, in natural order. Raises UnknownDeviceError."""
        known = self._table.sets
        set_ids = set()
        for device_id in ids:
            set_id = sets.replicated_id(device_id, self._resource.replicas)
            if set_id is None or set_id not in known:
                raise UnknownDeviceError(f"unknown device {device_id!r}")
            set_ids.add(set_id)
        return [known[set_id] for set_id in natural_sort([*set_ids])]

    def _reason(self, name: str) -> Reason | None:
        reason = self._store.reason(name)
        if reason is None and self._recreator is not None:
            return self._recreator.reason(name)
        return reason

    def _existing(self, group: DeviceSet) -> list[BinderDevice]:
        members = map(self._store.device, group.members)
        return [device for device in members if device is not None and device.kind is not Kind.ABSENT]

    def _provision(self) -> None:
        """Create the binder devices that are missing. A failure is logged; it leaves devices missing."""
        if self._provisioner is None:
            return
        try:
            created = self._provisioner.provision()
        except HostError as error:
            if str(error) != self._provisioning_error:
                LOG.error("provisioning failed, retrying", extra={"error": str(error)})  # noqa: TRY400 - no traceback
            self._provisioning_error = str(error)
            return
        if created:
            LOG.info("provisioned binder devices", extra={"devices": created})
            self._provisioning_error = ""

    @functools.cached_property
    def _spec(self) -> SpecFile:
        """The file of the CDI spec. Created in the worker thread, because the path of its directory may have links."""
        return SpecFile(self._host.process_path(self._host.resolve(self._cdi_dir)), self.resource_name)

    def _write_spec(self) -> None:
        """Write the CDI spec of the healthy devices. Raises CdiError."""
        if self._edits.needs_spec:
            self._spec.write(*self._build_spec())

    def _build_spec(self) -> tuple[bytes | None, list[int]]:
        """Return the CDI spec of the healthy devices, None if there are none, and the numbers of its device nodes."""
        table, replicas = self._table, self._resource.replicas
        healthy = {sets.replicated_id(device.id, replicas) for device in table.devices if device.healthy}
        allocatable = [
            AllocatedDevice(device_id, self._existing(table.sets[device_id]))
            for device_id in table.order
            if device_id in healthy
        ]
        # Building the spec takes a third of a second for 10,000 devices.
        key = (allocatable, self._present)
        if key != self._last_spec[0]:
            spec = self._edits.cdi_spec(allocatable, self._present, self._host.resolve)
            self._last_spec = (key, spec)
        members = [member for device in allocatable for member in device.members]
        return self._last_spec[1], [member.identity.number for member in members if member.identity is not None]

    def _find_shared_paths(self) -> None:
        """Find out which shared paths exist. Log once for each that does not."""
        present = frozenset(path for path in self._edits.shared_paths if self._host.exists(path))
        for path in sorted(self._present - present):
            LOG.info("shared path not found, not mounted", extra={"path": path})
        self._present = present


def expected_devices(resource: Resource) -> int | None:
    """Return the number of devices that the provisioned binder devices form; None if none are provisioned."""
    provision = resource.provision
    if provision is None:
        return None
    numbers = range(provision.first, provision.first + provision.count)
    device_sets = _layout(resource).sets(f"{resource.device_prefix}{number}" for number in numbers)
    return len(device_sets) * resource.replicas


def _store(host: Host, resource: Resource, clock: Callable[[], float]) -> DeviceStore:
    return DeviceStore(
        host,
        directory=resource.scan_directory,
        layout=_layout(resource),
        verify=resource.verify,
        missing_device_ttl=resource.missing_device_ttl,
        require_directory=resource.provision is None,
        clock=clock,
    )


def _layout(resource: Resource) -> Layout:
    if resource.sets is None:
        return sets.Single(resource.device_prefix)
    if isinstance(resource.sets, NumberedSets):
        return sets.Numbered(resource.device_prefix, resource.sets.size, resource.sets.stride, resource.sets.first)
    return sets.Named(resource.sets.names, resource.sets.pattern)


def _provisioner(host: Host, resource: Resource, clock: Callable[[], float]) -> DeviceProvisioner | None:
    provision = resource.provision
    if provision is None:
        return None
    spec = ProvisionSpec(
        directory=provision.directory,
        prefix=resource.device_prefix,
        first=provision.first,
        count=provision.count,
        max_devices=provision.max,
    )
    return DeviceProvisioner(spec, host, clock=clock)
