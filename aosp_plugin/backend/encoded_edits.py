"""What a container gets for its binder devices, as the encoded answer to Allocate.

What a device brings by itself is encoded once, as long as a scan finds the same binder devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.backend.container_edits import EditsBuilder
from aosp_plugin.framework.deviceplugin import answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aosp_plugin.backend.container_edits import AllocatedDevice
    from aosp_plugin.backend.shared_paths import SharedFiles
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.config import Resource

MAX_ENCODED = 20_000
"""Devices whose encoding is kept, in about 500 bytes each. With one more, all are dropped: a host may lose devices."""


class EncodedEditsBuilder(EditsBuilder):
    """Encodes ``for_container``. For any thread."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource)
        self._common_part = answers.environment(self._common_environment)
        # Each value is replaced as a whole, with what it was made of.
        self._devices: dict[str, tuple[Sequence[BinderDevice], bytes]] = {}
        self._shared: tuple[SharedFiles | None, str, bytes] = (None, "", b"")

    def encoded(self, devices: Sequence[AllocatedDevice], shared: SharedFiles) -> bytes:
        """Return what ``for_container`` returns as a ContainerAllocateResponse. Raises InvalidRequestError."""
        if self.needs_spec or (self._has_phones and len(devices) > 1):
            return answers.encode(self.for_container(devices, shared))
        members = [member for device in devices for member in device.members]
        parts = [answers.environment(self._visible_devices(map(self._visible_name, members))), self._common_part]
        parts += [self._device(device) for device in devices]
        if self._resource.container_paths:
            parts.append(answers.mounts(self._path_mounts_of(members, self._resource.container_paths)))
        parts.append(self._shared_part(members, shared))
        if spread := dict.fromkeys([device.spread_device for device in devices if device.spread_device]):
            parts.append(answers.devices(map(self._node, spread)))
        return b"".join(parts)

    def _device(self, device: AllocatedDevice) -> bytes:
        known = self._devices.get(device.id)
        if known is not None and known[0] == device.members:
            return known[1]
        if len(self._devices) >= MAX_ENCODED:
            self._devices = {}
        members = device.members
        encoded = answers.devices(self._nodes_of(members)) + answers.mounts(self._own_mounts_of(members))
        self._devices[device.id] = (members, encoded)
        return encoded

    def _shared_part(self, members: Sequence[BinderDevice], shared: SharedFiles) -> bytes:
        """Encode the shared devices and mounts, which depend on the binderfs of the container if it has one."""
        directory = next((member.directory for member in members if member.directory), "")
        files, known_directory, encoded = self._shared
        if files is not shared or known_directory != directory:
            nodes = [self._node(host_path, path) for host_path, path in shared.devices]
            encoded = answers.devices(nodes) + answers.mounts(self._shared_mounts_of(members, shared))
            self._shared = (shared, directory, encoded)
        return encoded
