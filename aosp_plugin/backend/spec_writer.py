"""The CDI spec of a resource: what is in it after a scan, and which devices it lacks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aosp_plugin.backend.container_edits import AllocatedDevice
from aosp_plugin.backend.device_table import existing
from aosp_plugin.binder.devices import sets
from aosp_plugin.binder.discovery.health import Reason
from aosp_plugin.binder.errors import NotRespondingError
from aosp_plugin.framework.cdi.spec_file import SpecFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aosp_plugin.backend.container_edits import EditsBuilder
    from aosp_plugin.backend.device_table import Scanned
    from aosp_plugin.backend.shared_paths import SharedFiles
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.config import Resource


class SpecWriter:
    """Writes the CDI spec of one resource. To be used in one thread, except for ``lacking``."""

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
        """Binder devices that no container can get, because only the spec brings them and it could not be written.
        Replaced by a single assignment."""
        self.changed: set[str] = set()
        """Binder devices that were added to ``lacking`` or removed from it; to be emptied by the reader."""

    def write(self, scanned: Scanned) -> None:
        """Write the spec of the devices that a scan found healthy. Raises CdiError, HostError and OSError."""
        devices = self._healthy(scanned)
        try:
            self._write(devices, scanned.shared)
        except BaseException:
            if self._edits.by_cdi_only:
                self._set_lacking(_names(devices) - _names(self._written))
            raise
        self._written = devices
        self._set_lacking(frozenset())

    def check(self, scanned: Scanned) -> None:
        """Check that this spec could be written, without changing it. Raises CdiError, HostError and OSError."""
        content = self._content(self._healthy(scanned), scanned.shared)
        self._call(lambda file: file.check(content or b""))

    def rewrite(self) -> None:
        """Write the same spec again after a device node was recreated. Raises CdiError, HostError and OSError."""
        self._call(SpecFile.rewrite)

    def _write(self, devices: list[AllocatedDevice], shared: SharedFiles) -> None:
        content = self._content(devices, shared)
        members = [member for device in devices for member in device.members]
        numbers = [member.identity.number for member in members if member.identity is not None]
        self._call(lambda file: file.write(content, numbers))

    def _content(self, devices: list[AllocatedDevice], shared: SharedFiles) -> bytes | None:
        """Return the spec of these devices, or None if there are none. 10,000 devices take a third of a second."""
        key = (devices, shared)
        if key != self._described[0]:
            self._described = (key, self._edits.cdi_spec(devices, shared, self._resolve))
        return self._described[1]

    def _call(self, function: Callable[[SpecFile], object]) -> None:
        """Call a function of the file, whose file system may hang."""
        if self._spec_file is None:
            directory = self._host.process_path(self._host.resolve(self._cdi_dir))
            self._spec_file = SpecFile(directory, self._resource.resource_name)
        file = self._spec_file
        self._host.call(lambda _: function(file), os.path.dirname(file.path))

    def _healthy(self, scanned: Scanned) -> list[AllocatedDevice]:
        """Return the devices that belong in the spec: those that lack nothing but the spec, and surplus ones in use."""
        table, replicas = scanned.table, self._resource.replicas
        usable = {"", Reason.NOT_IN_CDI_SPEC, Reason.SURPLUS}
        healthy = {sets.replicated_id(device.id, replicas) for device in table.devices if device.reason in usable}
        return [
            AllocatedDevice(
                device_id,
                existing(table.sets[device_id], scanned.tracked),
                scanned.shared.spread.device(table.sets[device_id].number),
            )
            for device_id in table.order
            if device_id in healthy
        ]

    def _resolve(self, path: str) -> str:
        """Follow the links in a path of the host; return it as it is if its file system does not respond."""
        try:
            return self._host.resolve(path)
        except NotRespondingError:
            return path

    def _set_lacking(self, names: frozenset[str]) -> None:
        self.changed |= names ^ self.lacking
        self.lacking = names


def _names(devices: Iterable[AllocatedDevice]) -> frozenset[str]:
    return frozenset(member.name for device in devices for member in device.members)
