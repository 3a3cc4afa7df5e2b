"""Binder devices as a backend of the framework, for DRA: phones that are made for a claim, and devices that are found.

A phone has a binderfs only while its claim is prepared. A found device is recreated when its claim is unprepared, so
that the next claim gets a fresh device.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from aosp_plugin.backend import found_devices
from aosp_plugin.backend.binder_backend import BinderBackend, unhealthy
from aosp_plugin.backend.container_edits import AllocatedDevice, resolved
from aosp_plugin.backend.found_devices import FoundDevices, HostState
from aosp_plugin.backend.parameters import Parameters, effective_parameters, require_free
from aosp_plugin.backend.phones import ClaimedPhones
from aosp_plugin.binder.devices.health import HealthProblem
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind, kind_of
from aosp_plugin.binder.devices.sets import DeviceSet, is_phone, last_number, natural_sort
from aosp_plugin.binder.driver.host import Driver, HostError
from aosp_plugin.framework.backend import ClaimParameters, ContainerEdits
from aosp_plugin.framework.errors import (
    AllocationError,
    BackendError,
    InvalidRequestError,
    UnhealthyDeviceError,
    UnknownDeviceError,
)

LOG = logging.getLogger(__name__)


class ClaimsBackend(BinderBackend):
    """The binder devices of one resource on this host, for ResourceClaims."""

    _prepared: Mapping[str, Sequence[BinderDevice]] = MappingProxyType({})
    """The binder devices with which devices were prepared."""

    def prepare(
        self, found: FoundDevices, ids: Sequence[str], parameters: Sequence[ClaimParameters]
    ) -> Sequence[ContainerEdits]:
        """Mount the phones ``ids`` that have no binderfs; return what a container gets with each device.

        Raises AllocationError, and then removes what this call has mounted.
        """
        effective = effective_parameters(parameters, self._resource.variables)
        groups = self._groups(found, ids)
        for group in groups if self._claimed is not None else ():
            self._require_usable(group, found_devices.general_problem(group, found, self._state_for_claims()))
        devices = self._further_devices(found, effective, groups)
        mounted = self._mount(groups)
        try:
            edits = self._edits_of(found, groups, effective, devices)
            return [edits[device_id] for device_id in ids]
        except AllocationError:
            with contextlib.suppress(BackendError):
                self.unprepare(mounted)
            raise

    def unprepare(self, ids: Sequence[str]) -> None:
        """Remove phones, and recreate found devices if ``recreate`` is on-start. Raises BackendError.

        A found device that cannot be recreated is unhealthy until ``update_host`` has recreated it. A device that a pod
        has through the other API stays unchanged.
        """
        if self._claimed is not None:
            try:
                self._claimed.release([device_id for device_id in ids if is_phone(device_id)])
            except HostError as error:
                raise BackendError(str(error)) from error
        elif self._recreator is not None:
            last = self._last  # a claim may end before the first scan
            for group in self._sets_of([device_id for device_id in ids if device_id in last.sets], last):
                if group.id not in self._held.problems:
                    try:
                        self._recreator.recreate(group)
                    except HostError as error:
                        LOG.warning("recreation failed", extra={"device": group.id, "error": str(error)})
        self._prepared = {each: members for each, members in self._prepared.items() if each not in ids}

    def is_prepared(self, found: FoundDevices, ids: Sequence[str]) -> bool:
        """Return whether these devices have the binder devices with which they were prepared."""
        try:
            devices = [self._device(found, group) for group in self._groups(found, ids)]
            return all(self._prepared.get(device.id) == self._lasting(device.members) for device in devices)
        except AllocationError:
            return False

    def places(self, device_id: str) -> Collection[str]:
        """Return the path of a phone's binderfs, or the paths of the binder devices of a found device.

        The paths of a found device include those that are links: it stays the same when they lead elsewhere. An ID of a
        former configuration may have none.
        """
        if self._claimed is not None:
            return [self._host.resolve(f"{self._resource.scan_directory}/{device_id}")]
        try:
            members = self._layout.set_of(device_id).members
        except ValueError:
            return []
        paths = [f"{self._resource.scan_directory}/{name}" for name in members]
        return [*paths, *map(self._host.resolve, paths)]

    def attributes(self, found: FoundDevices, device_id: str) -> Mapping[str, bool | int | str]:
        """Return the number of a device, its number of binder devices, and its first spread device."""
        group = found.sets.get(device_id)
        if group is None:
            return {}
        values: dict[str, bool | int | str] = {"binderDevices": len(group.members)}
        if (number := last_number(device_id)) is not None:
            values["number"] = number
        if spread := found.shared.spread.of(group.number):
            values["spreadDevice"] = os.path.basename(spread[0].path)
        return values

    @property
    def _claimed(self) -> ClaimedPhones | None:
        """The phones that are made for claims; None if devices are found."""
        return self._phones if isinstance(self._phones, ClaimedPhones) else None

    def _groups(self, found: FoundDevices, ids: Sequence[str]) -> list[DeviceSet]:
        """Return the device sets of ``ids`` in natural order. Raises UnknownDeviceError.

        A claim may have a phone beyond a count that was lowered since.
        """
        if self._claimed is None:
            return self._sets_of(ids, found)
        if unknown := [device_id for device_id in ids if not is_phone(device_id)]:
            raise UnknownDeviceError(f"unknown device {unknown[0]!r}")
        return [self._layout.set_of(phone) for phone in natural_sort([*set(ids)])]

    def _open_to_owner(self, problem: HealthProblem) -> bool:
        """Nothing is called, and nothing replaced, when a container of a prepared claim starts again."""
        return not problem.closed

    def _require_usable(self, group: DeviceSet, problem: HealthProblem | None) -> None:
        """Raise UnhealthyDeviceError if the claim to which this device is allocated cannot have it.

        The scheduler may have allocated the device before it was closed to new pods, and a refused claim never gets
        another device. The snapshot cannot tell: a preparation restores the lost mount of a prepared phone, and that
        another claim has the device, or that its recreation failed, may be newer than the last scan.
        """
        if group.id not in self._prepared:
            self._require_free(group)
        if problem is not None and problem.closed_to_claims:
            raise unhealthy(group, problem)

    def _state_for_claims(self) -> HostState:
        """Return what has a say in the health of devices for a claim: not what claims have, which the caller has read.

        They may have ended since the daemon read them.
        """
        return self._state()._replace(held=self._held.problems)

    def _lasting(self, members: Sequence[BinderDevice]) -> Sequence[BinderDevice]:
        """Return the binder devices without what may change while a claim has them.

        Recreation changes device number and inode, which only the next scan finds.
        """
        if self._recreator is None:
            return members
        return [
            device._replace(identity=device.identity and device.identity._replace(st_rdev=0, st_ino=0))
            for device in members
        ]

    def _mount(self, groups: Sequence[DeviceSet]) -> list[str]:
        """Mount the phones that have no binderfs, and return their IDs. Raises UnhealthyDeviceError."""
        if self._claimed is None:
            return []
        try:
            return self._claimed.prepare([group.id for group in groups])
        except HostError as error:
            ids = ", ".join(group.id for group in groups)
            raise UnhealthyDeviceError(f"device {ids!r} could not be mounted: {error}") from error

    def _device(self, found: FoundDevices, group: DeviceSet) -> AllocatedDevice:
        """Return what a container gets with a prepared device. Raises UnhealthyDeviceError.

        Only the binder devices of the phone are read, because a scan takes longer: it reads the driver's state as well.
        """
        if self._claimed is None:
            self._require_usable(group, found_devices.problem(group, found, self._state_for_claims()))
            return found.allocated(group)
        try:
            members = self._claimed.read(group.id)
        except HostError as error:
            raise UnhealthyDeviceError(str(error)) from error
        if len(members) < len(group.members):
            raise UnhealthyDeviceError(f"device {group.id!r} is unhealthy: its binder devices are missing")
        return found.allocated(group)._replace(members=members)

    def _edits_of(
        self, found: FoundDevices, groups: Sequence[DeviceSet], parameters: Parameters, further: Sequence[str]
    ) -> dict[str, ContainerEdits]:
        """Return what a container gets with each device, links in paths followed, by ID. Raises AllocationError."""
        devices = [self._device(found, group) for group in groups]
        taken = self._edits.paths_without(devices, found.shared)
        if parameters.container_paths is None:
            taken += self._resource.container_paths
        present = {*found.shared.devices, *(other[:2] for device in devices for other in device.others)}
        added = tuple((path, path) for path in further if (path, path) not in present)
        require_free(parameters, [path for path, _ in added], taken)
        self._prepared = {**self._prepared, **{device.id: self._lasting(device.members) for device in devices}}
        shared = found.shared._replace(devices=(*found.shared.devices, *added))
        edits = self._edits.for_claim(devices, shared, parameters)
        try:
            edits = [resolved(own, self._host.resolve) for own in edits]
        except OSError as error:
            raise UnhealthyDeviceError(str(error)) from error
        return dict(zip((device.id for device in devices), edits, strict=True))

    def _further_devices(
        self, found: FoundDevices, parameters: Parameters, groups: Sequence[DeviceSet]
    ) -> Sequence[str]:
        """Return the devices that the parameters name. Raises AllocationError if one is missing or not allowed."""
        driver, shared = self._host.driver() if parameters.devices else Driver(), found.shared
        own = {path for group in groups for path, *_ in shared.of(group.number)}
        for path in parameters.devices:
            try:
                status = self._host.lstat(self._host.resolve(path))
            except OSError as error:
                raise UnhealthyDeviceError(f"{parameters.sources['devices']}: {path}: {error}") from error
            if kind_of(status, driver) is not Kind.STAND_IN and not stat.S_ISBLK(status.st_mode):
                raise InvalidRequestError(
                    f"{parameters.sources['devices']}: {path} is not allowed; allowed: character and block devices "
                    "that are not binder devices"
                )
            sliced = shared.sliced.get((stat.S_IFMT(status.st_mode), status.st_rdev))
            if sliced is not None and sliced not in own:
                raise InvalidRequestError(
                    f"{parameters.sources['devices']}: {path} is not allowed: it is {sliced} of slice_devices, and not "
                    "in the slice of this device"
                )
        return parameters.devices
