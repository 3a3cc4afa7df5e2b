"""Binder devices as a backend of the framework, for the device plugin API; ``claims_backend`` extends it for DRA.

``scan`` reads the whole host each time, and ``devices`` returns the result. ``update_host`` compares what should exist
with what does, and makes up the difference: it provisions binder devices, retries recreations, and writes the CDI spec.
``allocate`` maps the IDs of devices back to binder devices, and returns what a container gets for them
(``container_edits``), as of the last scan.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from aosp_plugin.backend import scanned as scans
from aosp_plugin.backend.container_edits import AllocatedDevice, EditsBuilder
from aosp_plugin.backend.offered_phones import (
    SURPLUS_INTERVAL,
    Allocated,
    ClaimedPhones,
    OfferedPhones,
    ProvisionedPhones,
)
from aosp_plugin.backend.scanned import Holds, HostState, Scanned
from aosp_plugin.backend.shared_paths import SharedFiles, SharedPaths
from aosp_plugin.binder.devices import preference, sets
from aosp_plugin.binder.devices.health import HealthProblem, Reason
from aosp_plugin.binder.devices.scanner import BinderDevice, driver_of
from aosp_plugin.binder.devices.sets import DeviceSet, Layout, PhoneLayout, natural_sort
from aosp_plugin.binder.devices.store import DeviceStore
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.binder.provision.device_provisioner import DeviceProvisioner
from aosp_plugin.config.keys import NumberedSets, Resource
from aosp_plugin.config.values import Api, ProvisionedBy, Recreate
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.devices import ContainerEdits, Device
from aosp_plugin.framework.errors import BackendError, CdiError, UnhealthyDeviceError, UnknownDeviceError

if TYPE_CHECKING:
    from aosp_plugin.backend.spec_writer import SpecWriter
    from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
    from aosp_plugin.binder.provision.recreation import Recreator

LOG = logging.getLogger(__name__)


_NO_PROBLEM = ("", "")


class BinderBackend(Backend):
    """The binder devices of one resource on this host."""

    get_preferred_allocation_available = True
    _tolerated: ClassVar[frozenset[Reason]] = frozenset()
    """Reasons for which a device is not offered, but those who have it already may use it."""

    def __init__(
        self, host: Host, resource: Resource, *, cdi_dir: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``cdi_dir`` is the host's directory of CDI specs. The host is not accessed."""
        self.resource_name = resource.resource_name
        self.scanned_files = resource.scanned_files
        self.expected = expected_devices(resource)
        """The number of devices that the configuration orders; None if it orders none."""
        self.creates_devices = self.expected is not None
        self.driver = ""
        """The implementation of the driver, c or rust; empty before a scan has found out, and for other devices."""
        self.pre_start_required = resource.recreate is Recreate.ON_START and resource.api is Api.DEVICE_PLUGIN
        self._host = host
        self._resource = resource
        self._layout = layout(resource)
        self._numa = preference.parse_numa(resource.numa)
        self._store = DeviceStore(
            host,
            directory=resource.scan_directory,
            layout=self._layout,
            verify=resource.verify,
            missing_device_ttl=resource.missing_device_ttl,
            require_directory=not self.creates_devices,
            id_suffix=self.advertised_ids("")[-1],
            clock=clock,
        )
        provisions = resource.provisioned_by is ProvisionedBy.PLUGIN
        self._device_provisioner = device_provisioner(host, resource) if provisions else None
        self._phone_provisioner = provisioner = _phone_provisioner(host, resource)
        self._holds = Holds(lambda: () if provisioner is None else provisioner.other_api)
        self._phones = None if provisioner is None else self._offered_phones(provisioner, clock)
        # Under DRA, each claim gets a fresh phone anyway.
        recreates = resource.recreate is not Recreate.NEVER and not isinstance(self._phones, ClaimedPhones)
        self._recreator: Recreator | None = None
        if recreates:
            from aosp_plugin.binder.provision.recreation import Recreator  # noqa: PLC0415 - only where it is on

            self._recreator = Recreator(host, self._store, provisioner)
        self._edits = EditsBuilder(resource)
        self._spec: SpecWriter | None = None
        if self._edits.needs_spec:
            from aosp_plugin.backend.spec_writer import SpecWriter  # noqa: PLC0415 - loads json, for CDI only

            self._spec = SpecWriter(host, resource, self._edits, cdi_dir)
        self._shared_paths = SharedPaths(host, resource)
        self._allocated_before: set[str] = set()
        self._reuse_logged = False
        self._resets_requested = 0
        self._resets_done = 0
        self._scanned = Scanned()

    def devices(self) -> Sequence[Device]:
        """Return the devices in natural order."""
        return self._scanned.devices

    def directories(self) -> frozenset[str]:
        """Return the device directory, the directories that its links lead to, and those of the shared devices."""
        return self._store.directories() | self._shared_paths.directories()

    def seconds_until_scan(self) -> float | None:
        """Return 0.0 if ``update_host`` or ``pre_start`` has changed a device; see also the store and ``Phones``."""
        if self._state() != self._scanned.state:
            return 0.0
        due = self._store.seconds_until_scan()
        return min(SURPLUS_INTERVAL, math.inf if due is None else due) if self.has_surplus else due

    def scan(self) -> None:
        """Read the host.

        Raises BackendError and OSError. The first scan raises ConfigError if a shared device is not a device.
        """
        resets = self._resets_requested  # one that comes during the scan is for the next one
        forget = resets != self._resets_done
        try:
            if self._phones is not None:
                self._phones.scan()
            self._store.scan(forget=forget)
        except HostError as error:
            raise BackendError(str(error)) from error
        shared = self._shared_paths.scan(forget=forget)
        names = self._store.devices if self._phones is None else self._phones.names()
        before = self._scanned
        groups = {name: before.sets.get(name) or self._layout.set_of(name) for name in self._layout.ids(names)}
        crowded = scans.crowded(groups.values(), shared.spread)
        scanned = Scanned(groups, self._store.devices, self._store.reasons, shared, crowded, self._state())
        problems = scans.device_problems(groups.values(), scanned, scanned.state)
        numa_nodes = self._numa_nodes(groups.values(), shared)
        unchanged = (groups, problems, numa_nodes) == (before.sets, before.problems, before.numa_nodes)
        devices = before.devices if unchanged else self._advertised(groups, problems, numa_nodes)
        self._scanned = scanned._replace(problems=problems, numa_nodes=numa_nodes, devices=devices)
        self._resets_done = resets
        self.driver = self.driver or self._find_driver()

    def _find_driver(self) -> str:
        return driver_of(self._host, self._store.devices.values())

    def update_host(self) -> None:
        """Provision binder devices, retry failed recreations, and write the CDI spec. Raises BackendError."""
        steps = [self._provision]
        if self._recreator is not None:
            steps.append(self._recreator.retry)
        if self._spec is not None:
            steps.append(partial(self._spec.write, self._scanned))
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
        return self._holds.ids != self._scanned.state.held

    def reset(self) -> None:
        """Make the next scan forget the history: it accepts the devices that it finds, and drops the others.

        To be called in one thread only, which may be another one than that of ``scan``.
        """
        self._resets_requested += 1

    def binder_devices(self) -> Mapping[str, Sequence[BinderDevice]]:
        """Return the existing binder devices of each device, by ID without replicas, as of the last scan."""
        scanned = self._scanned
        return {device_id: scanned.existing(group) for device_id, group in scanned.sets.items()}

    def spread_devices(self) -> dict[str, list[str]]:
        """Return the IDs of the devices that have each spread device, by its path."""
        spread, groups = self._scanned.shared.spread, self._scanned.sets.values()
        ids: dict[str, list[str]] = {path: [] for path in spread.known}
        for group in groups if spread.known else ():
            ids[spread.device(group.number)] += self.advertised_ids(group.id)
        return ids

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

    def _offered_phones(self, provisioner: PhoneProvisioner, clock: Callable[[], float]) -> OfferedPhones | None:
        phones = self._resource.phones
        if phones is None:
            return None
        if self._resource.api is Api.DRA:
            return ClaimedPhones(provisioner, self._store, phones.count, self._holds)
        if self._resource.provisioned_by is ProvisionedBy.COMMAND:
            return ProvisionedPhones(provisioner, self._store, phones.count, self._holds)
        replicas = self._resource.replicas
        return OfferedPhones(provisioner, self._store, phones.count, self._holds, replicas=replicas, clock=clock)

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

    def _sets_of(self, ids: Iterable[str], scanned: Scanned) -> list[DeviceSet]:
        """Return the device sets of ``ids``, each once, in natural order. Raises UnknownDeviceError."""
        set_ids = set()
        for device_id in ids:
            set_id = sets.replicated_id(device_id, self._resource.replicas)
            if set_id is None or set_id not in scanned.sets:
                raise UnknownDeviceError(f"unknown device {device_id!r}")
            set_ids.add(set_id)
        return [scanned.sets[set_id] for set_id in natural_sort([*set_ids])]

    def _usable(self, group: DeviceSet, scanned: Scanned) -> AllocatedDevice:
        """Return what a container gets with a device. Raises UnhealthyDeviceError."""
        self._require_usable(group, scans.problem(group, scanned, self._state()))
        return scanned.allocated(group)

    def _require_usable(self, group: DeviceSet, problem: HealthProblem | None) -> None:
        if problem is not None and problem.reason not in self._tolerated:
            raise UnhealthyDeviceError(f"device {group.id!r} is unhealthy: {problem.detail}")

    def _state(self) -> HostState:
        """Return what has a say in the health of devices now. For any thread."""
        held = self._holds.ids
        return HostState(
            held,
            not held or self._holds.reported is not None,
            frozenset() if self._spec is None else self._spec.lacking,
            None if self._recreator is None else self._recreator.failed,
            None if self._phones is None else self._phones.state(),
        )

    def _numa_nodes(self, groups: Iterable[DeviceSet], shared: SharedFiles) -> dict[str, tuple[int, ...]]:
        """Return the NUMA nodes of the devices that are on any: the configured ones, or those of the spread device."""
        if not self._numa.ranges and not shared.spread.numa_nodes:
            return {}
        nodes = {group.id: self._numa.of(group.numbered) or shared.spread.numa_node(group.number) for group in groups}
        return {device_id: own for device_id, own in nodes.items() if own}

    def _advertised(
        self, ids: Iterable[str], problems: Mapping[str, HealthProblem], numa_nodes: Mapping[str, tuple[int, ...]]
    ) -> Sequence[Device]:
        """Return the replicas of the devices ``ids``."""
        return [
            Device(advertised_id, reason, numa_nodes.get(device_id, ()), detail)
            for device_id in ids
            for reason, detail in [problems.get(device_id, _NO_PROBLEM)]
            for advertised_id in self.advertised_ids(device_id)
        ]

    def _provision(self) -> None:
        """Create the binder devices and phones that are missing. Raises HostError."""
        if self._device_provisioner is not None and (created := self._device_provisioner.provision()):
            LOG.info("provisioned binder devices", extra={"devices": created})
        if self._phones is not None:
            self._phones.update_host(self._scanned)


def expected_devices(resource: Resource) -> int | None:
    """Return the number of devices that the configuration orders; None if it orders none."""
    provision = resource.provision
    if resource.phones is not None:
        return resource.phones.count * resource.replicas
    if provision is None:
        return None
    numbers = range(provision.first, provision.first + provision.count)
    ids = layout(resource).ids([f"{resource.device_prefix}{number}" for number in numbers])
    return len(ids) * resource.replicas


def layout(resource: Resource) -> Layout:
    """Return which binder devices form a device."""
    if resource.phones is not None:
        return PhoneLayout()
    if resource.sets is None:
        return sets.Single(resource.device_prefix)
    if isinstance(resource.sets, NumberedSets):
        return sets.Numbered(resource.device_prefix, resource.sets.size, resource.sets.stride, resource.sets.first)
    return sets.Named(resource.sets.names, resource.sets.pattern)


def device_provisioner(host: Host, resource: Resource) -> DeviceProvisioner | None:
    """Return what creates the binder devices of ``provision``; None if the resource has no ``provision``."""
    provision = resource.provision
    if provision is None:
        return None
    numbers = range(provision.first, provision.first + provision.count)
    names = [f"{resource.device_prefix}{number}" for number in numbers]
    from aosp_plugin.binder.provision.device_provisioner import DeviceProvisioner  # noqa: PLC0415 - as above

    return DeviceProvisioner(host, provision.directory, names, provision.max)


def _phone_provisioner(host: Host, resource: Resource) -> PhoneProvisioner | None:
    """Return what mounts or finds the binderfs of each phone; None if the resource has no ``phones``."""
    if resource.phones is None:
        return None
    from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE, SOURCE  # noqa: PLC0415 - as above
    from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner  # noqa: PLC0415 - as above
    from aosp_plugin.binder.provision.provisioner_socket import RemotePhoneProvisioner  # noqa: PLC0415 - as above

    kind = RemotePhoneProvisioner if resource.provisioned_by is ProvisionedBy.PROVISIONER else PhoneProvisioner
    return kind(resource.phones.directory, host, source=CLAIM_SOURCE if resource.api is Api.DRA else SOURCE)
