"""What a container gets for its binder devices, as the encoded answer to Allocate.

What a device brings by itself is encoded once, and joined with that of the other devices of a container.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.backend.container_edits import EditsBuilder, device_node_path
from aosp_plugin.framework.deviceplugin import answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aosp_plugin.backend.container_edits import AllocatedDevice
    from aosp_plugin.backend.shared_paths import SharedFiles
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.config import Resource


class EncodedDevice(NamedTuple):
    """A device that is healthy, and what it brings to any container."""

    device: AllocatedDevice
    names: str
    """The names of its binder devices in a container, separated by commas. No other device of a container has them."""
    directory: str
    """The root of its binderfs; empty if it has none."""
    data: bytes
    """A ContainerAllocateResponse with the device nodes and mounts that it has in any container."""


class EncodedEditsBuilder(EditsBuilder):
    """Encodes ``for_container``. For any thread."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource)
        variable = next(iter(self._visible_devices([])), "")
        self._variable = answers.map_key(variable) if variable else b""
        self._permissions = answers.permissions(resource.permissions)
        self._common = answers.environment(self._common_environment)
        # Replaced as a whole, with what it was made of.
        self._shared: tuple[SharedFiles | None, str, bytes] = (None, "", b"")

    def encoded(self, devices: Sequence[AllocatedDevice], shared: SharedFiles) -> bytes:
        """Return what ``for_container`` returns as a ContainerAllocateResponse. Raises InvalidRequestError."""
        if self.needs_spec or (self._has_phones and len(devices) > 1):
            return answers.encode(self.for_container(devices, shared))
        return self.joined([self.device(device) for device in devices], shared)

    def device(self, device: AllocatedDevice) -> EncodedDevice:
        """Encode what a device brings to any container."""
        members = device.members
        names = [self._visible_name(member) for member in members]
        data = [answers.device(device_node_path(member), member.path, self._permissions) for member in members]
        directories = [member.directory for member in members if member.directory]
        if mounts := self._own_mounts_of(members):
            data.append(answers.mounts(mounts))
        return EncodedDevice(
            device,
            names[0] if len(names) == 1 else ",".join(dict.fromkeys(names)),
            directories[0] if directories else "",
            b"".join(data),
        )

    def joined(self, devices: Sequence[EncodedDevice], shared: SharedFiles) -> bytes:
        """Return a ContainerAllocateResponse for a container with these devices; with a CDI spec, it has more."""
        parts = [device.data for device in devices]
        if self._variable:
            names = ",".join([device.names for device in devices])
            parts.append(answers.map_entry(self._variable, names.encode()))
        parts.append(self._common)  # replaces the variable if both have its name
        if self._resource.container_paths:
            members = [member for device in devices for member in device.device.members]
            parts.append(answers.mounts(self._path_mounts_of(members, self._resource.container_paths)))
        directory = ""
        for device in devices:
            if device.directory:
                directory = device.directory
                break
        files, known_directory, encoded = self._shared
        if files is not shared or known_directory != directory:
            encoded = self._encode_shared(devices, shared, directory)
        parts.append(encoded)
        if spread := dict.fromkeys([device.device.spread_device for device in devices if device.device.spread_device]):
            parts.append(answers.devices(map(self._node, spread)))
        return b"".join(parts)

    def _encode_shared(self, devices: Sequence[EncodedDevice], shared: SharedFiles, directory: str) -> bytes:
        """Encode the shared devices and mounts, which depend on the binderfs of the container if it has one."""
        members: list[BinderDevice] = [member for device in devices for member in device.device.members]
        nodes = [self._node(host_path, path) for host_path, path in shared.devices]
        encoded = answers.devices(nodes) + answers.mounts(self._shared_mounts_of(members, shared))
        self._shared = (shared, directory, encoded)
        return encoded
