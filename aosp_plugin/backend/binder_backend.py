"""Binder devices as a backend of the framework, for the device plugin API; ``claims_backend`` extends it for DRA.

``scan`` reads the whole host each time, and returns what it has found. ``update_host`` reconciles the host with the
configuration: it mounts phones, retries recreations, and writes the CDI spec.
``allocate`` maps the IDs of devices back to binder devices, and returns what a container gets for them
(``container_edits``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from aosp_plugin.backend import catalog
from aosp_plugin.backend.container_edits import EditsBuilder, SpecWriter
from aosp_plugin.backend.found_devices import FoundDevices, HeldDevices, HostState, ScanInput, device_problems
from aosp_plugin.backend.offers import RETRY, Offers
from aosp_plugin.backend.phones import SURPLUS_INTERVAL, phone_provisioner, phones_of
from aosp_plugin.backend.shared_paths import SharedFiles, SharedPaths
from aosp_plugin.binder.devices import preference, sets
from aosp_plugin.binder.devices.health import HealthProblem, Reason
from aosp_plugin.binder.devices.sets import DeviceSet, Layout, PhoneLayout, natural_sort
from aosp_plugin.binder.devices.store import DeviceStore
from aosp_plugin.binder.driver.host import Host, HostError
from aosp_plugin.binder.provision.device_links import DeviceLinks
from aosp_plugin.binder.provision.recreation import Recreator
from aosp_plugin.config.keys import NumberedSets, Resource
from aosp_plugin.config.values import Api, Recreate
from aosp_plugin.framework.backend import Backend, ContainerEdits, Device
from aosp_plugin.framework.conditions import Condition, Conditions
from aosp_plugin.framework.errors import BackendError, CdiError, UnhealthyDeviceError, UnknownDeviceError


class BinderBackend(Backend[FoundDevices]):
    """The binder devices of one resource on this host."""

    get_preferred_allocation_available = True

    def __init__(
        self,
        host: Host,
        resource: Resource,
        *,
        cdi_dir: str,
        conditions: Conditions | None = None,
        offers: Offers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``cdi_dir`` is the host's directory of CDI specs. The host is not accessed.

        ``offers`` are those of all resources of this process; None if it has no other one.
        """
        self._conditions = conditions or Conditions()
        self._offers = offers
        self.resource_name = resource.resource_name
        self.expected = None if resource.phones is None else resource.phones.count * resource.replicas
        """The number of devices in the configuration; None without ``phones``."""
        self.creates_devices = resource.phones is not None and resource.api is Api.DEVICE_PLUGIN
        self.input = ScanInput()
        """The present input from the daemon. The event loop replaces it as a whole, and requests a scan if that may
        change the devices. No other state is used by both threads."""
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
            require_directory=resource.phones is None,
            id_suffix=self.advertised_ids("")[-1],
            clock=clock,
        )
        provisioner = phone_provisioner(host, resource)
        self._held = HeldDevices(lambda: self.input, provisioner)
        self._phones = phones_of(resource, provisioner, self._store, self._held, clock)
        # Under DRA, each claim gets a fresh phone anyway.
        recreates = resource.recreate is not Recreate.NEVER and (resource.api is not Api.DRA or self._phones is None)
        self._recreator = Recreator(host, self._store, provisioner) if recreates else None
        self._edits = EditsBuilder(resource)
        self._spec = SpecWriter(host, resource, self._edits, cdi_dir) if self._edits.needs_spec else None
        self._shared_paths = SharedPaths(host, resource)
        self._links = DeviceLinks(host)
        self._resets = 0
        """``ScanInput.resets`` of the last scan. For the worker thread."""
        self._last = FoundDevices()
        """The result of the last scan. For the worker thread."""

    def scan(self) -> FoundDevices:
        """Read the host.

        Raises BackendError and OSError. The first scan raises ConfigError if a shared device is not a device.
        """
        resets = self.input.resets  # an increase during this scan is for the next scan
        forget = resets != self._resets
        try:
            if self._phones is not None:
                self._phones.scan()
            self._store.scan(forget=forget)
        except HostError as error:
            raise BackendError(str(error)) from error
        shared = self._shared_paths.scan(forget=forget)
        names = self._store.devices if self._phones is None else self._phones.names()
        before = self._last
        groups = {name: before.sets.get(name) or self._layout.set_of(name) for name in self._layout.ids(names)}
        directory = self._host.resolve(self._resource.scan_directory)
        found = FoundDevices(
            directories=self._store.directories() | self._shared_paths.directories(),
            sets=groups,
            binder_devices=self._store.devices,
            reasons=self._store.reasons,
            shared=shared,
            state=self._state(),
            numa_nodes=self._numa_nodes(groups.values(), shared),
            directory=directory,
        )
        self._held.appeared = self.input.held_since(found)
        found = self._evaluated(found) if self._offers is None else self._take(found, self._offers)
        problems = found.problems
        unchanged = (groups, problems, found.numa_nodes) == (before.sets, before.problems, before.numa_nodes)
        devices = before.devices if unchanged else self._advertised(groups, problems, found.numa_nodes)
        found = replace(found, devices=devices)
        self._last, self._resets = replace(found, due=self._due(found)), resets
        self._conditions.replace("devices", self.resource_name, self._found_conditions(found))
        return self._last

    def _evaluated(self, found: FoundDevices) -> FoundDevices:
        """Return what a scan has found with the problems of the devices."""
        found = replace(found, state=self._state())
        return replace(found, problems=device_problems(found))

    def _take(self, found: FoundDevices, offers: Offers) -> FoundDevices:
        """Evaluate what a scan has found, and take what is usable, unless another resource of this process offers it.

        So a device is healthy in one resource, from the moment in which it appears.
        """
        files, reason = found.identified(), Reason.OFFERED_BY_OTHER_RESOURCE
        with offers.lock:
            others = offers.of_others(self.resource_name, files)
            details = {
                each: f"this plugin offers it as {offer.device_id} of {offer.resource}"
                for each, offer in others.items()
            }
            self._held.elsewhere = {each: HealthProblem(reason, f"{reason}: {text}") for each, text in details.items()}
            found = self._evaluated(replace(found, files=files, elsewhere=frozenset(others)))
            own = {device_id: each for device_id, each in files.items() if device_id not in others}
            offers.take(self.resource_name, own, found.sets.keys() - found.problems.keys())
        return found

    def _found_conditions(self, found: FoundDevices) -> Iterator[Condition]:
        """Yield the conditions of the devices as a whole."""
        if not (count := len(found.devices)):
            yield Condition(catalog.NO_DEVICES, "")
        elif self.expected is not None and count < self.expected:
            yield Condition(catalog.TOO_FEW_DEVICES, f"{count:,} of {self.expected:,} devices exist")
        if names := [name for names in found.restricted.values() for name in names]:
            first = ",".join(names[:10])
            fields = {"devices": len(names), "device": first}
            yield Condition(catalog.RESTRICTED, f"{len(names):,} binder devices are restricted: {first}", fields=fields)

    def _due(self, found: FoundDevices) -> float | None:
        """Return the seconds until a scan is due without a change; None if no time is known."""
        due = [self._store.seconds_until_scan()]
        if found.has_surplus:
            due.append(SURPLUS_INTERVAL)
        if self._held.elsewhere:
            due.append(RETRY)
        return min((each for each in due if each is not None), default=None)

    def update_host(self, found: FoundDevices) -> bool:
        """Mount phones, retry failed recreations, link binder devices, write the CDI spec. Raises BackendError."""
        steps: list[Callable[[], object]] = []
        if self._phones is not None:
            steps.append(partial(self._phones.update_host, found))
        if self._recreator is not None:
            steps.append(self._recreator.retry)
        steps.append(partial(self._link, found))
        if self._spec is not None:
            steps.append(partial(self._spec.write, found.usable, found.shared))
        errors = []
        for step in steps:
            try:
                step()
            except (OSError, HostError, CdiError) as error:
                errors.append(str(error))
        if errors:
            raise BackendError("; ".join(errors))
        return self._state() != found.state or self._store.seconds_until_scan() == 0.0

    @property
    def api(self) -> Api:
        """The API by which pods get the devices."""
        return self._resource.api

    def is_former(self, device_id: str) -> bool:
        """Return whether pods may have a device that is no longer listed."""
        return sets.unreplicated(device_id) in self.input.former

    def advertised_ids(self, device_id: str) -> list[str]:
        """Return the IDs under which a device is advertised: its own ID, or the IDs of its replicas."""
        return sets.replica_ids(device_id, self._resource.replicas)

    def check_host(self, found: FoundDevices) -> None:
        """Check without effect that ``update_host`` could mount phones, and write the CDI spec.

        May block. To be called before the plugin of the backend runs. Raises CdiError, HostError and OSError.
        """
        if self._phones is not None:
            self._phones.check()
        if self._spec is not None:
            self._spec.check(found.usable, found.shared)

    def allocate(self, found: FoundDevices, ids: Sequence[str]) -> ContainerEdits:
        """Return what a container gets for the devices ``ids``. Raises AllocationError."""
        devices = [found.allocated(group) for group in self._sets_of(ids, found)]
        return self._edits.for_container(devices, found.shared)

    def prefer(
        self, found: FoundDevices, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Choose consecutive devices, or the least shared replicas; see ``binder.devices.preference``."""
        replicas, order = self._resource.replicas, [*found.sets]
        if replicas > 1:
            return preference.spread(order, replicas, available, must_include, size)
        return preference.prefer(order, available, must_include, size, found.numa_nodes)

    def pre_start(self, found: FoundDevices, ids: Sequence[str]) -> None:
        """Recreate the binder devices of ``ids`` if ``recreate`` is on-start. Idempotent.

        Raises UnhealthyDeviceError if another pod has one of them, and BackendError if the host fails.

        This includes a device that the count or ``per_device`` no longer allows: its pod keeps it.

        The last tenant may still have a binder device open whose recreation failed. The device is unhealthy until this
        function or ``update_host`` has recreated it.
        """
        if self._recreator is None:
            return
        for group in self._sets_of(ids, found):
            self._require_free(group)
            try:
                self._recreator.recreate(group)
            except HostError as error:
                raise BackendError(f"device {group.id!r} could not be recreated: {error}") from error
        if self._spec is not None:
            try:
                self._spec.rewrite()
            except (OSError, HostError, CdiError) as error:
                raise BackendError(f"devices {', '.join(ids)} were recreated, but: {error}") from error

    def _sets_of(self, ids: Iterable[str], found: FoundDevices) -> list[DeviceSet]:
        """Return the device sets of ``ids``, each once, in natural order. Raises UnknownDeviceError."""
        set_ids = set()
        for device_id in ids:
            set_id = sets.replicated_id(device_id, self._resource.replicas)
            if set_id is None or set_id not in found.sets:
                raise UnknownDeviceError(f"unknown device {device_id!r}")
            set_ids.add(set_id)
        return [found.sets[set_id] for set_id in natural_sort([*set_ids])]

    def _require_free(self, group: DeviceSet) -> None:
        """Raise UnhealthyDeviceError if another pod has the device, or may get it from another resource.

        Its files must stay.

        The snapshot may not tell yet: the device may be held since the last scan.
        """
        problem = self._held.problems.get(group.id)
        if problem is not None and (problem.in_use or group.id in self._held.elsewhere):
            raise unhealthy(group, problem)

    def _state(self) -> HostState:
        """Return the present state of the host that decides on the health of devices."""
        return HostState(
            {**self.input.unrecorded, **self.input.claimed, **self._held.problems},
            frozenset() if self._spec is None else self._spec.lacking,
            None if self._recreator is None else self._recreator.failed,
            None if self._phones is None else self._phones.state(),
        )

    def _numa_nodes(self, groups: Iterable[DeviceSet], shared: SharedFiles) -> dict[str, tuple[int, ...]]:
        """Return the NUMA nodes by device: the configured nodes, else the node of the spread device."""
        if not self._numa.ranges and not shared.spread.numa_nodes:
            return {}
        nodes = {group.id: self._numa.of(group.numa_names) or shared.spread.numa_node(group.number) for group in groups}
        return {device_id: own for device_id, own in nodes.items() if own}

    def _advertised(
        self, ids: Iterable[str], problems: Mapping[str, HealthProblem], numa_nodes: Mapping[str, tuple[int, ...]]
    ) -> Sequence[Device]:
        """Return the replicas of the devices ``ids``."""
        devices = []
        for device_id in ids:
            nodes, problem = numa_nodes.get(device_id, ()), problems.get(device_id)
            for advertised_id in self.advertised_ids(device_id):
                if problem is None:
                    devices.append(Device(advertised_id, numa_nodes=nodes))
                else:
                    is_open = self._open_to_owner(problem)
                    devices.append(Device(advertised_id, problem.reason, nodes, problem.detail, is_open))
        return devices

    def _open_to_owner(self, problem: HealthProblem) -> bool:
        """Return whether the pod that has a device may start its container again."""
        return problem.open_to_owner

    def _link(self, found: FoundDevices) -> None:
        """Link the found devices where that is permitted. Phones get their links when mounted. Raises OSError."""
        count = self._links.link_found(found.binder_devices.values(), repair=self._phones is None)
        text = f"{count:,} binder devices have none" if count else ""
        self._conditions.set(catalog.UNLINKED, text, resource=self.resource_name)


def unhealthy(group: DeviceSet, problem: HealthProblem) -> UnhealthyDeviceError:
    """Return the error for a device that a pod cannot have."""
    return UnhealthyDeviceError(f"device {group.id!r} is unhealthy: {problem.detail}")


def layout(resource: Resource) -> Layout:
    """Return which binder devices form a device."""
    if resource.phones is not None:
        return PhoneLayout()
    if resource.sets is None:
        return sets.Single(resource.device_prefix)
    if isinstance(resource.sets, NumberedSets):
        return sets.Numbered(resource.device_prefix, resource.sets.size, resource.sets.stride, resource.sets.first)
    return sets.Named(resource.sets.names, resource.sets.pattern)
