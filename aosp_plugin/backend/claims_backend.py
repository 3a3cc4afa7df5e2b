"""Binder devices as a backend of the framework, for DRA: phones that are made for a claim, and devices that are found.

A phone has no binderfs until its claim is prepared, and none after it. A found device is recreated when its claim is
over, so that the next one gets a fresh one.
"""

import contextlib
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from aosp_plugin.backend import scanned as scans
from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.container_edits import AllocatedDevice
from aosp_plugin.backend.offered_phones import ClaimedPhones
from aosp_plugin.backend.parameters import Parameters, effective_parameters, require_free
from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind, kind_of
from aosp_plugin.binder.devices.sets import DeviceSet, PhoneLayout, is_phone, last_number, natural_sort
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.binder.provision.recreation import Recreator
from aosp_plugin.config.keys import Resource
from aosp_plugin.framework.backend import ClaimParameters, Version
from aosp_plugin.framework.devices import ContainerEdits
from aosp_plugin.framework.errors import (
    AllocationError,
    BackendError,
    InvalidRequestError,
    UnhealthyDeviceError,
    UnknownDeviceError,
)

LOG = logging.getLogger(__name__)

_MAX_TEXT_LENGTH = 64
"""Characters in the value of an attribute (staging/src/k8s.io/api/resource/v1/types.go)."""


class ClaimsBackend(BinderBackend):
    """The binder devices of one resource on this host, for ResourceClaims."""

    _tolerated = frozenset({Reason.SURPLUS, Reason.FOREIGN_MOUNT})  # the mount finds what is in the way now

    def __init__(
        self, host: Host, resource: Resource, *, cdi_dir: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """See ``BinderBackend``."""
        super().__init__(host, resource, cdi_dir=cdi_dir, clock=clock)
        self.creates_devices = resource.provision is not None
        self._claimed = self._phones if isinstance(self._phones, ClaimedPhones) else None
        self._prepared: dict[str, Sequence[BinderDevice]] = {}
        self._kernel_version = kernel_version(os.uname().release)

    def _find_driver(self) -> str:
        return super()._find_driver() if self._claimed is None else self._claimed.driver

    def prepare(self, ids: Sequence[str], parameters: Sequence[ClaimParameters]) -> Sequence[ContainerEdits]:
        """Mount those of the phones ``ids`` that have no binderfs; return what a container gets with each device.

        Raises AllocationError; what this call has mounted is removed then.
        """
        effective = effective_parameters(parameters, self._resource.visible_devices_env)
        groups = self._groups(ids)
        for group in groups:
            self._require_usable(group, scans.general_problem(group, self._scanned, self._state()))
        devices = self._further_devices(effective, groups)
        mounted = self._mount(groups)
        try:
            return self._edits_of(ids, groups, effective, devices)
        except AllocationError:
            with contextlib.suppress(BackendError):
                self.unprepare(mounted)
            raise

    def unprepare(self, ids: Sequence[str]) -> None:
        """Remove phones, and recreate found devices if ``recreate`` is on-start. Raises BackendError.

        A found device that cannot be recreated is unhealthy until ``update_host`` has recreated it. A device that a pod
        has through the other API is left as it is.
        """
        if self._claimed is not None:
            try:
                self._claimed.release([device_id for device_id in ids if is_phone(device_id)])
            except HostError as error:
                raise BackendError(str(error)) from error
        elif self._recreator is not None:
            scanned = self._scanned
            for group in self._sets_of([device_id for device_id in ids if device_id in scanned.sets], scanned):
                self._recreate(group, self._recreator)
        for device_id in ids:
            self._prepared.pop(device_id, None)

    def is_prepared(self, ids: Sequence[str]) -> bool:
        """Return whether these devices have the binder devices with which they were prepared."""
        try:
            devices = map(self._device, self._groups(ids))
            return all(self._prepared.get(device.id) == self._lasting(device.members) for device in devices)
        except AllocationError:
            return False

    def retain(self, ids: Collection[str]) -> None:
        """Release all devices but ``ids``, as ``unprepare`` does. Raises BackendError."""
        try:
            known = {*self._prepared} if self._claimed is None else self._claimed.existing()
        except HostError as error:
            raise BackendError(str(error)) from error
        if released := natural_sort([*known.difference(ids)]):
            self.unprepare(released)

    def attributes(self, device_id: str) -> Mapping[str, bool | int | str | Version]:
        """Return the number of a device, its driver, the version of the kernel, its spread device, and its size."""
        scanned = self._scanned
        group = scanned.sets.get(device_id)
        if group is None:
            return {}
        values: dict[str, bool | int | str | Version] = {"binderDevices": len(group.members)}
        if (number := last_number(device_id)) is not None:
            values["number"] = number
        texts = {"driver": self.driver, "spreadDevice": os.path.basename(scanned.shared.spread.device(group.number))}
        values |= {name: text for name, text in texts.items() if 0 < len(text) <= _MAX_TEXT_LENGTH}
        if self._kernel_version:
            values["kernelVersion"] = Version(self._kernel_version)
        return values

    def _groups(self, ids: Sequence[str]) -> list[DeviceSet]:
        """Return the device sets of ``ids`` in natural order. Raises UnknownDeviceError.

        A claim may have a phone beyond the count: it was lowered since.
        """
        if self._claimed is None:
            return self._sets_of(ids, self._scanned)
        if unknown := [device_id for device_id in ids if not is_phone(device_id)]:
            raise UnknownDeviceError(f"unknown device {unknown[0]!r}")
        return [PhoneLayout().set_of(phone) for phone in natural_sort([*set(ids)])]

    def _lasting(self, members: Sequence[BinderDevice]) -> Sequence[BinderDevice]:
        """Return binder devices with what stays the same while a claim has them.

        Recreation changes minor number and inode, which only the next scan finds.
        """
        if self._recreator is None:
            return members
        return [
            device._replace(identity=device.identity and device.identity._replace(number=0, inode=0))
            for device in members
        ]

    def _mount(self, groups: Sequence[DeviceSet]) -> list[str]:
        """Mount those of the phones that have no binderfs, and return them. Raises UnhealthyDeviceError."""
        if self._claimed is None:
            return []
        try:
            return self._claimed.prepare([group.id for group in groups])
        except HostError as error:
            ids = ", ".join(group.id for group in groups)
            raise UnhealthyDeviceError(f"device {ids!r} could not be mounted: {error}") from error

    def _device(self, group: DeviceSet) -> AllocatedDevice:
        """Return what a container gets with a prepared device. Raises UnhealthyDeviceError.

        The binder devices of a phone are read alone, because a scan would read the state of the driver as well.
        """
        if self._claimed is None:
            return self._usable(group, self._scanned)
        try:
            members = self._claimed.read(group.id)
        except HostError as error:
            raise UnhealthyDeviceError(str(error)) from error
        if len(members) < len(group.members):
            raise UnhealthyDeviceError(f"device {group.id!r} is unhealthy: its binder devices are missing")
        return AllocatedDevice(group.id, members, self._scanned.shared.of(group.number))

    def _edits_of(
        self, ids: Sequence[str], groups: Sequence[DeviceSet], parameters: Parameters, further: Sequence[str]
    ) -> list[ContainerEdits]:
        """Return what a container gets with each of the devices ``ids``. Raises AllocationError."""
        scanned = self._scanned
        devices = [self._device(group) for group in groups]
        taken = self._edits.paths_without(devices, scanned.shared)
        if parameters.container_paths is None:
            taken += self._resource.container_paths
        present = {*scanned.shared.devices, *((path, path) for device in devices for path in device.others)}
        added = tuple((path, path) for path in further if (path, path) not in present)
        require_free(parameters, [path for path, _ in added], taken)
        if self._claimed is None and self._recreator is None:
            self._log_reuse([device.id for device in devices if device.id not in self._prepared])
        self._prepared |= {device.id: self._lasting(device.members) for device in devices}
        shared = scanned.shared._replace(devices=(*scanned.shared.devices, *added))
        edits = zip((device.id for device in devices), self._edits.for_claim(devices, shared, parameters), strict=True)
        by_id = dict(edits)
        return [self._resolved(by_id[device_id]) for device_id in ids]

    def _further_devices(self, parameters: Parameters, groups: Sequence[DeviceSet]) -> Sequence[str]:
        """Return the devices of the parameters. Raises AllocationError if one is missing, or must not be passed on."""
        driver, shared = self._host.driver() if parameters.devices else Driver(), self._scanned.shared
        own = {path for group in groups for path in shared.of(group.number)}
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

    def _resolved(self, edits: ContainerEdits) -> ContainerEdits:
        """Return the edits with paths of the host without links, which a CDI spec requires. Raises AllocationError."""
        host_paths = {*(node.host_path for node in edits.devices), *(mount.host_path for mount in edits.mounts)}
        try:
            resolved = {path: self._host.resolve(path) for path in host_paths}
        except OSError as error:
            raise UnhealthyDeviceError(str(error)) from error
        return edits._replace(
            devices=[node._replace(host_path=resolved[node.host_path]) for node in edits.devices],
            mounts=[mount._replace(host_path=resolved[mount.host_path]) for mount in edits.mounts],
        )

    def _recreate(self, group: DeviceSet, recreator: Recreator) -> None:
        if group.id in self._holds.ids:
            return
        try:
            recreator.recreate(group)
        except HostError as error:
            LOG.warning("recreation failed", extra={"device": group.id, "error": str(error)})


def kernel_version(release: str) -> str:
    """Return the first three numbers of a kernel's release, such as 6.1.0 for 6.1-rc2; empty if there are none."""
    match = re.match(r"(0|[1-9]\d*)\.(0|[1-9]\d*)(?:\.(0|[1-9]\d*))?", release)
    return ".".join(part or "0" for part in match.groups()) if match else ""
