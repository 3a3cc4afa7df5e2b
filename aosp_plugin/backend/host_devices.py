"""The devices of a resource on this host, whichever API serves them.

``scan`` lets the store read the binder devices (``binder.discovery``) and groups them into devices (``device_table``).
``devices`` returns these. ``update_host`` changes the host: it provisions binder devices, retries recreations, and
writes the CDI spec.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from aosp_plugin.backend import parts
from aosp_plugin.backend.container_edits import AllocatedDevice, EditsBuilder
from aosp_plugin.backend.device_health import DeviceHealth
from aosp_plugin.backend.device_table import DeviceTable, DeviceTableBuilder, ExistingBinderDevices, Scanned
from aosp_plugin.backend.holds import Holds
from aosp_plugin.backend.phones import SURPLUS_INTERVAL
from aosp_plugin.backend.shared_paths import SharedPaths
from aosp_plugin.binder.devices import numa, sets
from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.config import Api, Recreate
from aosp_plugin.errors import (
    BackendError,
    CdiError,
    HostError,
    NotRespondingError,
    UnhealthyDeviceError,
    UnknownDeviceError,
    WorkerTimeoutError,
)
from aosp_plugin.framework.backend import Backend

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aosp_plugin.backend.phones import Allocated
    from aosp_plugin.binder.devices.sets import DeviceSet
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.discovery.health import Reason
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.config import Resource
    from aosp_plugin.framework.devices import Devices

LOG = logging.getLogger(__name__)


class HostDevices(Backend):
    """Finds and keeps the binder devices of one resource; subclasses give them to containers."""

    _tolerated: ClassVar[frozenset[Reason]] = frozenset()
    """Reasons for which a device is not offered, but those who have it already may use it."""

    def __init__(
        self, host: Host, resource: Resource, *, cdi_dir: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``cdi_dir`` is the host's directory of CDI specs. The host is not accessed."""
        self.resource_name = resource.resource_name
        self.scanned_files = resource.scanned_files
        self.creates_devices = parts.expected_devices(resource) is not None
        self.pre_start_required = resource.recreate is Recreate.ON_START and resource.api is Api.DEVICE_PLUGIN
        self._host = host
        self._resource = resource
        self._store = parts.device_store(host, resource, clock)
        self._device_provisioner = parts.device_provisioner(host, resource, clock)
        self._phone_provisioner = provisioner = parts.phone_provisioner(host, resource, clock)
        self._holds = Holds(lambda: () if provisioner is None else provisioner.other_api)
        self._phones = parts.phones(resource, self._phone_provisioner, self._store, self._holds, clock)
        self._recreator = parts.recreator(host, resource, self._phone_provisioner, self._store)
        self._edits = EditsBuilder(resource)
        self._spec = parts.spec_writer(host, resource, self._edits, cdi_dir)
        self._shared_paths = SharedPaths(host, resource)
        self._scanned = Scanned(DeviceTable(), self._store.tracked, self._shared_paths.files)
        self._full = True
        layout = parts.layout(resource)
        self._health = DeviceHealth(layout, self._phones, self._recreator, self._spec, self._holds)
        self._table_builder = DeviceTableBuilder(
            layout,
            numa.parse(resource.numa),
            resource.replicas,
            exists=self._is_listed,
            spread=lambda: self._shared_paths.files.spread,
            problem=lambda group: self._health.of(group, self._store.tracked, self._shared_paths.files),
            suspects=lambda: self._health.suspects(self._store.tracked, self._shared_paths.files),
        )

    def devices(self) -> Devices:
        """Return the devices in natural order."""
        return self._scanned.table.devices

    def directories(self) -> frozenset[str]:
        """Return the device directory, the directories that its links lead to, and those of the shared devices."""
        return self._store.directories() | self._shared_paths.directories()

    def seconds_until_scan(self) -> float | None:
        """Return 0.0 if ``update_host`` or ``pre_start`` has changed a device; see also the store and ``Phones``."""
        if self._health.is_stale(self._scanned):
            return 0.0
        due = self._store.seconds_until_scan()
        return min(SURPLUS_INTERVAL, math.inf if due is None else due) if self.has_surplus else due

    def scan(self, changed: Collection[str] | None = None) -> None:
        """Read the host.

        Raises BackendError, OSError, and WorkerTimeoutError if the file system of the device directory has not been
        responding since the start. The first scan raises ConfigError if a shared device is not a device.
        """
        try:
            if self._phones is not None:
                self._phones.scan(changed)
            names = self._store.scan(changed)
        except NotRespondingError as error:
            raise WorkerTimeoutError(str(error)) from error
        except HostError as error:
            raise BackendError(str(error)) from error
        self._full |= names is None
        shared_before, shared = self._scanned.shared, self._shared_paths.scan(changed)
        concerns_all = (shared.missing, shared.spread) != (shared_before.missing, shared_before.spread)
        held = self._holds.ids  # before the table, so that the next scan finds what changes meanwhile
        stale = self._health.take_stale(self._scanned, held)
        table = self._scanned.table
        if names is None or concerns_all:
            table = self._table_builder.build(self._names(), self._store.tracked.keys())
        elif names or stale:
            changed_names = {*names, *stale}
            table = self._table_builder.update(table, changed_names, self._names(), self._store.tracked.keys())
        self._scanned = Scanned(table, self._store.tracked, shared, held)

    def update_host(self) -> None:
        """Provision binder devices, retry failed recreations, and write the CDI spec. Raises BackendError."""
        steps = [self._provision]
        if self._recreator is not None:
            steps.append(self._recreator.retry)
        if self._spec is not None:
            steps.append(partial(self._spec.write, self._scanned))
        steps.append(self._holds.check)
        errors = []
        for step in steps:
            try:
                step()
            except (OSError, HostError, CdiError) as error:
                errors.append(str(error))
        if errors:
            raise BackendError("; ".join(errors))

    @property
    def api(self) -> Api:
        """The API by which pods get the devices."""
        return self._resource.api

    @property
    def has_surplus(self) -> bool:
        """Whether there are phones beyond the configured count, which are removed when free. For any thread."""
        return self._phones is not None and self._phones.surplus

    def set_allocated(self, allocated: Allocated | None) -> None:
        """Set which devices pods have, for the removal of surplus phones; None if that is unknown. For any thread."""
        if self._phones is not None:
            self._phones.allocated = allocated

    @property
    def holds_undecided(self) -> bool:
        """Whether the next answer of the kubelet may change which devices are held; see ``set_held``. For any thread.

        Once it is known that no device is held, none will be: the node has one plugin for the resource.
        """
        return self._holds.reported is None or bool(self._holds.ids)

    def set_held(self, ids: Collection[str]) -> bool:
        """Set which devices pods have through the other API, as IDs of that API. For any thread.

        No further pod gets them until they are free. Returns whether a scan is due, because that changes the devices.
        """
        self._holds.report(ids)
        return self._holds.ids != self._scanned.held

    def set_unknown(self, reason: str) -> bool:
        """Set why it stays unknown which devices pods have; empty while the kubelet answers or may soon.

        Held devices stay held, and ``update_host`` fails with the reason. Returns whether that is due. For any thread.
        """
        before, self._holds.unknown = self._holds.unknown, reason
        return reason != before

    def reset(self) -> None:
        """Make the next scan forget the history: it accepts the devices that it finds, and drops the others."""
        self._store.reset()
        self._shared_paths.reset()

    def binder_devices(self) -> Mapping[str, Sequence[BinderDevice]]:
        """Return the existing binder devices of each device, by ID without replicas, as of the last scan."""
        return ExistingBinderDevices(self._scanned)

    @property
    def ids(self) -> Sequence[str]:
        """The IDs of the devices as of the last scan, without replicas. For any thread."""
        return self._scanned.table.order

    @property
    def known_spread_devices(self) -> tuple[str, ...]:
        """The paths of the spread devices, including lost ones."""
        return self._scanned.shared.spread.known

    def spread_devices(self) -> dict[str, list[str]]:
        """Return the IDs of the devices that have each spread device, without replicas, by its path."""
        return self._scanned.by_spread_device()

    def advertised_ids(self, device_id: str) -> list[str]:
        """Return the IDs under which a device is advertised: its own, or those of its replicas."""
        return sets.replica_ids(device_id, self._resource.replicas)

    def check_host(self) -> None:
        """Check without effect that ``update_host`` could provision devices, and write the CDI spec of the last scan.

        May block. For a backend whose plugin does not run yet. Raises CdiError, HostError and OSError.
        """
        for provisioner in (self._device_provisioner, self._phones):
            if provisioner is not None:
                provisioner.check()
        if self._spec is not None:
            self._spec.check(self._scanned)

    def _sets_of(self, ids: Sequence[str], table: DeviceTable) -> list[DeviceSet]:
        """Return the device sets of ``ids``, each once, in natural order. Raises UnknownDeviceError."""
        known = table.sets
        set_ids = set()
        for device_id in ids:
            set_id = sets.replicated_id(device_id, self._resource.replicas)
            if set_id is None or set_id not in known:
                raise UnknownDeviceError(f"unknown device {device_id!r}")
            set_ids.add(set_id)
        return [known[set_id] for set_id in (natural_sort([*set_ids]) if len(set_ids) > 1 else set_ids)]

    def _usable(self, group: DeviceSet, scanned: Scanned) -> AllocatedDevice:
        """Return what a container gets with a device. Raises UnhealthyDeviceError."""
        problem = self._health.of(group, scanned.tracked, scanned.shared)
        if problem is not None and problem.reason not in self._tolerated:
            raise UnhealthyDeviceError(f"device {group.id!r} is unhealthy: {problem.detail}")
        return self._with_members(group, scanned)

    def _with_members(self, group: DeviceSet, scanned: Scanned) -> AllocatedDevice:
        """Return what a container gets with a device that is healthy, or whose problem is tolerated."""
        members = [scanned.tracked.device(name) for name in group.members]
        spread = scanned.shared.spread
        return AllocatedDevice(group.id, members, spread.device(group.number) if spread.known else "")

    def _names(self) -> Sequence[str]:
        """Return the names of the binder devices whose devices are listed, in natural order."""
        return self._store.names if self._phones is None else self._phones.names()

    def _is_listed(self, name: str) -> bool:
        return name in self._store.tracked if self._phones is None else self._phones.is_listed(name)

    def _provision(self) -> None:
        """Create the binder devices and phones that are missing. Raises HostError."""
        if self._device_provisioner is not None and (created := self._device_provisioner.provision()):
            LOG.info("provisioned binder devices", extra={"devices": created})
        if self._phones is not None:
            full, self._full = self._full, False
            self._phones.update_host(self._scanned, full=full)
