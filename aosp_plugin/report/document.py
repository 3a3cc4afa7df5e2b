"""The status of the node as plain data: every device with its state, pods and health.

``/status`` and ``aosp-plugin status`` show it. The names of the fields are the names in the JSON document.
"""

import enum
from typing import Annotated, Self

from msgspec import Meta, Struct

from aosp_plugin.framework.conditions import Severity

LATEST = 250_000_000_000.0
"""Seconds since the epoch that are a date, in any time zone: the calendar ends with the year 9999."""

_START = 19
"""Position of the start time in /proc/PID/stat, after the name of the program."""


class State(enum.StrEnum):
    """State of a device. If several apply, the first in this order is reported.

    A device's ``pods`` are reported in every state.
    """

    UNHEALTHY = "unhealthy"
    """Not allocatable; ``reason`` says why."""
    ALLOCATED = "allocated"
    """Healthy and allocated to a pod."""
    FREE = "free"
    """Healthy and not allocated."""
    UNKNOWN = "unknown"
    """Healthy; whether it is allocated is unknown."""


class LogRecord(Struct, frozen=True, gc=False):
    """A record of the plugin's log."""

    time: float
    """In seconds since the epoch."""
    level: str
    """``info``, ``warning`` or ``error``."""
    message: str
    resource: str
    """Name of the resource; empty if the record is about the whole plugin."""
    fields: dict[str, str]
    """The other fields of the record."""


class Problem(Struct, frozen=True, gc=False):
    """A fault that an operator may have to repair."""

    severity: Severity
    kind: str
    """One word for programs: a reason of unhealthy devices, or for example ``not-registered``."""
    resource: str
    """Name of the resource; empty if the problem affects all resources."""
    summary: str
    """The problem in a sentence."""
    action: str
    """The consequences and the first remedy, in a few sentences."""
    runbook: str
    """The fragment of the heading in docs/runbook.md that describes it."""
    since: float | None = None
    """When it began, in seconds since the epoch; None if that is unknown."""
    count: int = 0
    """Number of affected devices; 0 if it does not affect single devices."""
    devices: tuple[str, ...] = ()
    """IDs of the first of these devices."""
    pods: tuple[str, ...] = ()
    """``namespace/name`` of the first pods that have one of these devices."""
    more_pods: int = 0
    """Number of the other pods that have one of these devices."""


class PodContainer(Struct, frozen=True, gc=False):
    """A container to which a device is allocated."""

    namespace: str
    name: str
    """Name of the pod."""
    container: str


class DeviceReport(Struct, frozen=True, gc=False):
    """One device, as the kubelet counts devices."""

    id: str
    state: State
    reason: str
    """Why it is unhealthy, in one word; empty if it is healthy."""
    detail: str
    """The reason in a sentence, if there is more to say."""
    numa: tuple[int, ...]
    binder_devices: tuple[str, ...]
    """Names of its binder devices that exist."""
    pods: tuple[PodContainer, ...]
    since: float | None = None
    """When its state began, in seconds since the epoch, at the earliest when the plugin started; None for the states
    free and unknown."""
    spread_devices: tuple[str, ...] = ()
    """Paths of its spread devices on the host."""
    restricted: bool = False
    """Whether it is healthy, but some users of its container may not open one of its binder devices."""


class Counts(Struct, frozen=True, gc=False):
    """Numbers of devices. They overlap: an allocated device may be unhealthy, too."""

    total: int
    """Devices that exist, or are missing but still listed: the sum of ``healthy`` and ``unhealthy``."""
    healthy: int
    """Devices that the plugin advertises as healthy to the kubelet."""
    unhealthy: int
    """The other devices, including those that are truncated from the kubelet's list."""
    allocated: int
    """Devices that pods have, in any state, including gone devices. 0 if allocations are unknown."""
    free: int
    """Devices in the state ``free``."""
    unknown: int
    """Devices in the state ``unknown``."""
    gone: int
    """Devices that pods have and that no longer exist. They are not part of ``total``."""


class DriverReport(Struct, frozen=True, gc=False):
    """The DRA driver of a resource with ``api: dra``."""

    name: str
    slices: int
    """Number of ResourceSlices that should exist."""
    slices_confirmed: int
    """Number of ResourceSlices that the API server has as they should be."""
    claims: int
    """Number of prepared claims."""


class ResourceReport(Struct, frozen=True, gc=False):
    """One resource."""

    name: str
    registered: bool
    """Whether the plugin is registered and the kubelet has an open stream."""
    since: float
    """When ``registered`` changed last, in seconds since the epoch."""
    kubelet_allocatable: int | None
    """Number of healthy devices that the kubelet has; None if it is unknown."""
    kubelet_published: int | None
    """Number of healthy devices that the plugin had published when the kubelet answered; None if it is unknown what the
    kubelet has. It differs from ``counts.healthy`` for some seconds after a change."""
    revision: int
    """Number of the device list, which increases with each change."""
    truncated: int
    """Number of devices that are missing in the kubelet's list because of its message limit."""
    counts: Counts
    devices: tuple[DeviceReport, ...]
    driver: DriverReport | None = None
    """None for a resource that is served by the device plugin API."""


class Known(Struct, frozen=True, gc=False):
    """Whether it is known which pod has which device."""

    known: bool
    problem: str
    """Why it is unknown; empty if it is known."""


class ProcessReport(Struct, frozen=True, gc=False):
    """The identity of the plugin's process."""

    pid: int
    """The process ID that the process itself sees: in a container usually 1."""
    start: int
    """When it started, in clock ticks since the host booted (/proc/PID/stat)."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the identity of the process with this ID, which a later one does not have; None if there is none."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return cls(pid, int(fields[_START]))


class ReloadReport(Struct, frozen=True, gc=False):
    """A reload of the configuration."""

    began: float
    """When the plugin began to read the configuration, in seconds since the epoch."""
    changed: bool
    """Whether the reload has changed the configuration."""
    error: str
    """Why the reload was rejected; empty if it was accepted."""


class Report(Struct, frozen=True, gc=False):
    """The whole Kubernetes node."""

    version: str
    node: str
    """Name of the Kubernetes node."""
    started: Annotated[float, Meta(ge=0, le=LATEST)]
    """When the plugin started with its current configuration, in seconds since the epoch."""
    allocations: Known
    resources: tuple[ResourceReport, ...]
    problems: tuple[Problem, ...] = ()
    """The problems, most urgent first; empty if all is well."""
    log: tuple[LogRecord, ...] = ()
    """The last 100 records of the log, newest first."""
    runbook_url: str = ""
    """Address of docs/runbook.md for links, from the configuration; empty if it is not configured."""
    selinux: bool | None = None
    """Whether the kernel has booted with SELinux, without which an unchanged Android finds no services; None if that is
    unknown."""
    process: ProcessReport | None = None
    """The process of the plugin."""
    last_reload: ReloadReport | None = None
    """None before the first reload."""
