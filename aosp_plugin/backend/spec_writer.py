"""The CDI spec of a resource, written after each scan that changes it."""

from collections.abc import Iterable

from aosp_plugin.backend.container_edits import AllocatedDevice, EditsBuilder
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.backend.shared_paths import SharedFiles
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Resource
from aosp_plugin.framework.cdi import SpecFile


class SpecWriter:
    """Writes the CDI spec of one resource. For the worker thread."""

    def __init__(self, host: Host, resource: Resource, edits: EditsBuilder, cdi_dir: str) -> None:
        """``cdi_dir`` is the host's directory of CDI specs. The host is not accessed."""
        self._host = host
        self._resource = resource
        self._edits = edits
        self._cdi_dir = cdi_dir
        self._spec_file: SpecFile | None = None
        self._described: tuple[object, bytes | None] = (None, None)
        self._written: list[AllocatedDevice] = []
        self.lacking: frozenset[str] = frozenset()
        """Binder devices that no container can get, because they are in the spec alone, which could not be written."""

    def write(self, found: FoundDevices) -> None:
        """Write the spec with the devices that pods may use. Raises CdiError, HostError and OSError."""
        devices = self._usable(found)
        try:
            content = self._content(devices, found.shared)
            members = [member for device in devices for member in device.members]
            numbers = [member.identity.st_rdev for member in members if member.identity is not None]
            self._file().write(content, numbers)
        except BaseException:
            if self._edits.by_cdi_only:
                self.lacking = _names(devices) - _names(self._written)
            raise
        self._written = devices
        self.lacking = frozenset()

    def check(self, found: FoundDevices) -> None:
        """Check without effect that the spec could be written. Raises CdiError, HostError and OSError."""
        content = self._content(self._usable(found), found.shared)
        self._file().check(content or b"")

    def rewrite(self) -> None:
        """Write the same spec again after a device node was recreated. Raises CdiError, HostError and OSError."""
        self._file().rewrite()

    def _content(self, devices: list[AllocatedDevice], shared: SharedFiles) -> bytes | None:
        """Return the spec of these devices, or None if there are none. 10,000 devices take a third of a second."""
        key = (devices, shared)
        if key != self._described[0]:
            self._described = (key, self._edits.cdi_spec(devices, shared, self._host.resolve))
        return self._described[1]

    def _file(self) -> SpecFile:
        if self._spec_file is None:
            directory = self._host.process_path(self._host.resolve(self._cdi_dir))
            self._spec_file = SpecFile(directory, self._resource.resource_name)
        return self._spec_file

    @staticmethod
    def _usable(found: FoundDevices) -> list[AllocatedDevice]:
        """Return the devices that a new pod, or a pod that has them, may use."""
        problems = found.problems
        return [
            found.allocated(group)
            for group in found.sets.values()
            if group.id not in problems or not problems[group.id].closed
        ]


def _names(devices: Iterable[AllocatedDevice]) -> frozenset[str]:
    return frozenset(member.name for device in devices for member in device.members)
