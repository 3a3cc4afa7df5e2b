"""Binder as a backend of ``deviceplugin``.

The way of a node through here: ``scan`` has it looked at and judged (``binder.known``), groups it with others
into a device (``binder.sets``) and keeps the outcome; ``devices`` tells it to the kubelet; ``allocate`` turns IDs back
into nodes and these into what a container needs (``response``).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from aosp_plugin.backend.allocation import AllocatedDevice, Responses
from aosp_plugin.backend.device_table import DeviceTable, DeviceTableBuilder, told
from aosp_plugin.backend.recreation import Recreator
from aosp_plugin.binder.devices import edits, preference, sets
from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.discovery.health import Reason
from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.binder.discovery.store import DeviceStore
from aosp_plugin.binder.provision.provisioner import DeviceProvisioner
from aosp_plugin.errors import BackendError, DeviceDirectoryError, HostError, UnhealthyDeviceError, UnknownDeviceError
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.cdi.spec_file import SpecFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aosp_plugin.backend.settings import Settings
    from aosp_plugin.binder.devices.sets import DeviceSet
    from aosp_plugin.binder.discovery.binder_device import BinderDevice, Identity
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.framework.edits import ContainerEdits
    from aosp_plugin.framework.inventory import Device

LOG = logging.getLogger(__name__)


class BinderBackend(Backend):
    """The binder nodes of one host as devices of one resource."""

    get_preferred_allocation_available = True

    def __init__(self, host: Host, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.resource_name = settings.resource_name
        self._host = host
        self._settings = settings
        self.pre_start_required = settings.renew
        self._known = _known(host, settings, clock)
        self._keeper = DeviceProvisioner(settings.keep, host, clock=clock) if settings.keep else None
        self._not_kept = ""
        self._responses = Responses(
            settings.resource_name,
            settings.policy,
            settings.ways,
            alone=isinstance(settings.layout, sets.Single),
        )
        self._spec = SpecFile(host.process_path(host.resolve(settings.cdi_directory)), settings.resource_name)
        self._present: frozenset[str] | None = None
        self._renewal = Recreator(host, self._known) if settings.renew else None
        self._grouping = DeviceTableBuilder(settings, self._reason, lambda name: self._known.node(name) is not None)
        self._specified: tuple[object, bytes | None] = (None, None)
        self._view = DeviceTable()

    def devices(self) -> Sequence[Device]:
        """Return the devices in natural order."""
        return self._view.devices

    def directories(self) -> frozenset[str]:
        """Return the device directory and those that its links lead into."""
        return self._known.directories()

    def scan(self, changed: Collection[str] | None = None) -> None:
        """Look at the host again, and set right there what is this resource's to set right.

        Raises BackendError, CdiError and OSError.
        """
        try:
            self._scan(changed)
        except HostError as error:
            raise BackendError(str(error)) from error

    def _scan(self, changed: Collection[str] | None) -> None:
        self._keep_nodes()
        looked_at = self._known.look(changed)
        if self._renewal is not None and self._renewal.catch_up():
            looked_at = None
        self._look_for_shared_paths()
        if looked_at is None:
            self._view = self._grouping.of(self._known.names, self._view)
        elif looked_at:
            self._view = self._grouping.after(self._view, looked_at, self._known.names)
        self._write_spec()

    def forget(self) -> None:
        """Have the next look take the nodes that are there for the right ones, whatever was there before."""
        self._known.forget()

    def nodes(self) -> dict[str, Sequence[BinderDevice]]:
        """Return the nodes that are there of each device, replicas counted as one."""
        view = self._view
        return {one: self._nodes_of(view.sets[one]) for one in view.order}

    def ids(self, device_id: str) -> list[str]:
        """Return the IDs under which a device is advertised: its own, or those of its replicas."""
        return sets.replica_ids(device_id, self._settings.replicas)

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Return what a container needs for the devices ``ids``. Raises AllocationError.

        Each node is looked at once more: between the last look and this moment it may have become something else.
        """
        again = self._known.rechecker()
        given = []
        for one in self._sets_of(ids):
            nodes, reasons = zip(*map(again, one.nodes), strict=True)
            ill = sets.worst(list(zip(one.nodes, reasons, strict=True))) if any(reasons) else None
            if ill is not None:
                raise UnhealthyDeviceError(f"device {one.id!r} is unhealthy: {told(one, *ill)}")
            given.append(AllocatedDevice(one.id, nodes))
        return self._responses.for_container(given, self._present or frozenset())

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Choose neighbours, or the replicas that are shared least; see ``binder.preference``."""
        view, count = self._view, self._settings.replicas
        if count > 1:
            return preference.spread(view.order, count, available, must_include, size, view.numa_nodes)
        return preference.prefer(view.order, available, must_include, size, view.numa_nodes)

    def pre_start(self, ids: Sequence[str]) -> None:
        """Put a new node in the place of each, if the operator wants that. Raises UnhealthyDeviceError.

        Called again for the same container, it does the same again. What fails leaves a node that may still be the
        last tenant's; it is Unhealthy until a later look has replaced it.
        """
        if self._renewal is None:
            return
        for one in self._sets_of(ids):
            for name in one.nodes:
                try:
                    self._renewal.renew(name)
                except HostError as error:
                    raise UnhealthyDeviceError(f"device {one.id!r} can't be given to a container: {error}") from error
        if self._responses.needs_spec:
            self._spec.rewrite()

    def close(self) -> None:
        """Remove the CDI spec. Nodes are looked at, not kept open, and those that were made stay. Raises HostError."""
        if self._responses.needs_spec:
            self._spec.close()

    def _sets_of(self, ids: Sequence[str]) -> list[DeviceSet]:
        """Return the sets of ``ids``, each once, in natural order. Raises UnknownDeviceError."""
        found = self._view.sets
        return [found[one] for one in natural_sort([*{self._set_of(one) for one in ids}])]

    def _set_of(self, device_id: str) -> str:
        """Return the ID of the set that a device, or a replica of one, is. Raises UnknownDeviceError."""
        try:
            set_id = sets.split_replica(device_id, self._settings.replicas)[0]
        except ValueError:
            set_id = ""
        if set_id not in self._view.sets:
            raise UnknownDeviceError(f"device {device_id!r} is unknown")
        return set_id

    def _reason(self, name: str) -> Reason | None:
        reason = self._known.reason(name)
        if reason is None and self._renewal is not None and self._renewal.is_due(name):
            return Reason.NOT_RECREATED
        return reason

    def _nodes_of(self, one: DeviceSet) -> list[BinderDevice]:
        nodes = [self._known.node(name) for name in one.nodes]
        return [node for node in nodes if node is not None and node.kind is not Kind.ABSENT]

    def _keep_nodes(self) -> None:
        """Make the nodes that are missing; what can't be made is logged, and missing."""
        if self._keeper is None:
            return
        try:
            made = self._keeper.provision()
        except HostError as error:
            if str(error) != self._not_kept:
                LOG.error("nodes can't be made", extra={"error": str(error)})  # noqa: TRY400 - one line for a person
            self._not_kept = str(error)
            return
        if made:
            LOG.info("made nodes", extra={"nodes": made})
            self._not_kept = ""

    def _write_spec(self) -> None:
        """Have runtimes know the healthy devices by name. Raises HostError."""
        if not self._responses.needs_spec:
            return
        healthy = {sets.split_replica(one.id, self._settings.replicas)[0] for one in self._view.devices if one.healthy}
        given = [
            AllocatedDevice(one, self._nodes_of(self._view.sets[one])) for one in self._view.order if one in healthy
        ]
        key = (given, self._present)
        # To put a spec together takes a third of a second for 10,000 devices.
        if key != self._specified[0]:
            content = self._responses.spec(given, self._present or frozenset(), self._host.resolve)
            self._specified = (key, content)
        numbers = [node.identity.number for one in given for node in one.nodes if node.identity is not None]
        self._spec.write(self._specified[1], numbers)

    def _look_for_shared_paths(self) -> None:
        """Note which of the paths that all containers get are there; say once what is not."""
        policy = self._settings.policy
        wanted = {shared.host_path for shared in (*policy.shared_mounts, *policy.shared_devices)}
        wanted.discard(edits.OWN_BINDERFS)
        present = frozenset(path for path in wanted if self._host.exists(path))
        before = wanted if self._present is None else self._present
        for path in sorted(before - present):
            LOG.info("a shared path does not exist, and containers do without it", extra={"path": path})
        self._present = present


def identities(host: Host, settings: Settings) -> dict[Identity, str]:
    """Look at the nodes of one resource, without changing anything; return what tells each, and its path.

    None where the device directory can't be read yet. Raises OSError.
    """
    known = _known(host, settings, time.monotonic)
    try:
        known.look()
    except DeviceDirectoryError:
        return {}
    nodes = map(known.node, known.names)
    return {node.identity: node.path for node in nodes if node is not None and node.identity is not None}


def _known(host: Host, settings: Settings, clock: Callable[[], float]) -> DeviceStore:
    return DeviceStore(
        host,
        directory=settings.directory,
        prefix=settings.prefix,
        named=settings.layout if isinstance(settings.layout, sets.Named) else None,
        verify=settings.verify,
        missing_device_ttl=settings.missing_device_ttl,
        clock=clock,
    )
