"""Which part of a status report ``aosp-plugin status`` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from aosp_plugin.config import shown
from aosp_plugin.errors import ConfigError
from aosp_plugin.report.document import State

if TYPE_CHECKING:
    from aosp_plugin.report.document import DeviceReport, Report, ResourceReport


class Selection(NamedTuple):
    """What to show. Conditions combine; counts are always those of the whole resource."""

    resource: str | None = None
    namespace: str | None = None
    """Only devices of pods in this namespace."""
    pod: str | None = None
    """Only devices of pods with this name."""
    unhealthy: bool = False
    """Only unhealthy, leaked and gone devices."""

    @property
    def limits_devices(self) -> bool:
        """Whether some devices may not be shown."""
        return bool(self.namespace or self.pod or self.unhealthy)

    def of(self, report: Report) -> Report:
        """Return the selected part of a report. Raises ConfigError for an unknown resource."""
        resources = tuple(item for item in report.resources if self.resource in {None, item.name})
        if not resources and self.resource is not None:
            names = ", ".join(resource.name for resource in report.resources)
            raise ConfigError(f"flag --resource: {shown(self.resource)} is not served; allowed: {names}")
        if self.limits_devices:
            resources = tuple(map(self._devices_of, resources))
        problems = report.problems
        if self.resource is not None:
            problems = tuple(problem for problem in problems if problem.resource in {"", self.resource})
        return msgspec.structs.replace(report, resources=resources, problems=problems)

    def _devices_of(self, resource: ResourceReport) -> ResourceReport:
        devices = tuple(filter(self._has, resource.devices))
        names = {name for device in devices for name in device.binder_devices}
        leaks = tuple(leak for leak in resource.leaks if leak.binder_device in names)
        return msgspec.structs.replace(resource, devices=devices, leaks=leaks)

    def _has(self, device: DeviceReport) -> bool:
        if self.unhealthy and not device.reason and device.state is not State.LEAKED:
            return False
        if not (self.namespace or self.pod):
            return True
        return any(self.namespace in {None, pod.namespace} and self.pod in {None, pod.name} for pod in device.pods)
