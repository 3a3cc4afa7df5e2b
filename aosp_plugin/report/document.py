"""The status of the node as plain data: every device with its state, pods, health and leaks.

``/status`` and ``aosp-plugin status`` show it. The names of the fields are the names in the JSON document.
"""

import enum

from msgspec import Struct


class State(enum.StrEnum):
    """State of a device. If several apply, the first one in this order is reported.

    Leaks come first because the next tenant would share a binder context with another process, even on a healthy
    device. A device's ``pods`` are reported in every state.
    """

    LEAKED = "leaked"
    """A process outside its pods holds one of its binder devices open."""
    UNHEALTHY = "unhealthy"
    """Not allocatable; ``reason`` says why."""
    ALLOCATED = "allocated"
    """Healthy and allocated to a pod."""
    FREE = "free"
    """Healthy and not allocated."""
    UNKNOWN = "unknown"
    """Healthy; whether it is allocated is unknown."""


class Severity(enum.StrEnum):
    """How urgent a problem is."""

    ERROR = "error"
    """Pods do not get devices, or not only their own."""
    WARNING = "warning"
    """Some devices, or some of what the plugin shows, cannot be used."""
    NOTICE = "notice"
    """Nothing is lost; something is slower or less certain than usual."""


class Event(enum.StrEnum):
    """What a change is about."""

    STARTED = "started"
    RELOADED = "reloaded"
    REGISTERED = "registered"
    UNREGISTERED = "unregistered"
    KUBELET_RESTARTED = "kubelet-restarted"
    KUBELET_LACKS = "kubelet-lacks"
    KUBELET_HAS_ALL = "kubelet-has-all"
    OTHER_PLUGINS = "other-plugins"
    SCANS_FAIL = "scans-fail"
    SCANS_SUCCEED = "scans-succeed"
    ADDED = "added"
    REMOVED = "removed"
    UNHEALTHY = "unhealthy"
    HEALTHY = "healthy"
    LEAKED = "leaked"
    LEAK_ENDED = "leak-ended"
    ALLOCATED = "allocated"
    RELEASED = "released"


class Change(Struct, frozen=True, gc=False):
    """A change of some devices, of the registration or of the plugin."""

    time: float
    """When the plugin noticed it, in seconds since the epoch."""
    event: Event
    resource: str
    """Name of the resource; empty if it is about the whole plugin."""
    text: str
    """What has changed, in a few words."""
    count: int = 0
    """Number of devices; 0 if it is not about single devices."""
    devices: tuple[str, ...] = ()
    """IDs of the first ones of these devices."""
    pod: str = ""
    """``namespace/name`` of the pod that got or returned the devices."""


class Problem(Struct, frozen=True, gc=False):
    """Something that an operator may have to repair."""

    severity: Severity
    kind: str
    """What it is, in one word: a reason of unhealthy devices, or for example ``not-registered``."""
    resource: str
    """Name of the resource; empty if it affects all of them."""
    summary: str
    """What is wrong, in a sentence."""
    action: str
    """What it means and what to do first, in a few sentences."""
    runbook: str
    """The heading in docs/runbook.md that describes it, as the fragment of its address."""
    since: float | None = None
    """When it began, in seconds since the epoch; None if that is unknown."""
    count: int = 0
    """Number of affected devices; 0 if it does not affect single ones."""
    devices: tuple[str, ...] = ()
    """IDs of the first ones of these devices."""
    pods: tuple[str, ...] = ()
    """``namespace/name`` of the first pods that have one of these devices."""
    more_pods: int = 0
    """Number of further such pods."""


class PodContainer(Struct, frozen=True, gc=False):
    """A container that a device is allocated to."""

    namespace: str
    name: str
    """Name of the pod."""
    container: str


class DeviceReport(Struct, frozen=True, gc=False):
    """One device, as the kubelet counts it."""

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
    """When the device got into its state, in seconds since the epoch; None if the state is free or unknown. What was
    so when the plugin started counts from then."""
    allocated_since: float | None = None
    """When its present pods got it, in any state; None if no pod has it."""
    spread_device: str = ""
    """Path of its spread device; empty if it has none."""


class LeakReport(Struct, frozen=True, gc=False):
    """A process that holds a binder device open and does not belong to a pod that the device is allocated to."""

    binder_device: str
    pid: int
    command: str
    container: str
    """Container ID; empty outside containers."""
    pod_uid: str
    user: int
    """Effective user ID."""
    started: float
    """When the process started, in seconds since the epoch."""
    since: float
    """When a leak scan found the binder device leaked, in seconds since the epoch."""


class Counts(Struct, frozen=True, gc=False):
    """Numbers of devices. They overlap: an allocated device may be unhealthy and leaked, too."""

    total: int
    """Devices that exist, or are missing but still listed: ``healthy`` and ``unhealthy`` ones."""
    healthy: int
    """Devices that the plugin advertises as healthy to the kubelet."""
    unhealthy: int
    """The other devices, including those that are truncated from the kubelet's list."""
    allocated: int
    """Devices that pods have, in any state, including ``gone`` ones. 0 if allocations are unknown."""
    free: int
    """Devices in the state ``free``."""
    unknown: int
    """Devices in the state ``unknown``."""
    leaked: int
    """Devices in the state ``leaked``."""
    gone: int
    """Devices that pods have and that no longer exist. They are not part of ``total``."""


class DriverReport(Struct, frozen=True, gc=False):
    """The DRA driver of a resource with ``api: dra``."""

    name: str
    slices: int
    """Number of ResourceSlices that should exist."""
    slices_confirmed: int
    """Number of those that the API server has as they should be."""
    claims: int
    """Number of prepared claims."""


class ResourceReport(Struct, frozen=True, gc=False):
    """One resource."""

    name: str
    registered: bool
    """Whether the plugin is registered and the kubelet has an open stream."""
    since: float
    """When ``registered`` changed last, in seconds since the epoch."""
    problem: str
    """Why the plugin is not registered, or why the device list may be out of date."""
    problem_since: float | None
    """When the problem began, in seconds since the epoch; None if there is none."""
    notice: str
    """Which other plugins of the resource run on the node; empty if there is none."""
    kubelet_allocatable: int | None
    """Number of healthy devices that the kubelet has; None if it has not answered that."""
    kubelet_published: int | None
    """Number of healthy devices that the plugin had published when the kubelet answered; None likewise. It differs from
    ``counts.healthy`` for some seconds after a change."""
    expected: int | None
    """Number of devices that ``provision`` orders; None if the plugin provisions none."""
    revision: int
    """Number of the device list; increases with each change."""
    truncated: int
    """Number of devices missing in the kubelet's list because of its message size limit."""
    counts: Counts
    devices: tuple[DeviceReport, ...]
    leaks: tuple[LeakReport, ...]
    leak_detection: str
    """``off``; ``pending`` before the first scan; ``complete``; ``incomplete`` if the plugin cannot inspect every
    process; ``failing``."""
    leaks_known: bool
    """Whether a leak scan has completed. If not, ``counts.leaked`` is 0 and says nothing."""
    leaks_problem: str
    """Why leak detection is off, incomplete or out of date; empty if it is complete."""
    leaks_scanned: float | None
    """When the last leak scan ended, in seconds since the epoch; None before."""
    driver: DriverReport | None = None
    """None for a resource that is served by the device plugin API."""


class Known(Struct, frozen=True, gc=False):
    """Whether it is known which pod has which device."""

    known: bool
    problem: str
    """Why they are unknown."""


class ProcessReport(Struct, frozen=True, gc=False):
    """What identifies the process of the plugin on its host."""

    pid: int
    """As the process itself sees it: in a container usually 1."""
    start: int
    """When it started, in clock ticks since the host booted (/proc/PID/stat)."""


class ReloadReport(Struct, frozen=True, gc=False):
    """A reload of the configuration."""

    began: float
    """When the plugin began to read the configuration, in seconds since the epoch."""
    changed: bool
    """Whether another configuration is served since."""
    error: str
    """Why the reload was rejected; empty if it was not."""


class Report(Struct, frozen=True, gc=False):
    """The whole Kubernetes node."""

    version: str
    node: str
    """Name of the Kubernetes node."""
    started: float
    """When the plugin started with its current configuration, in seconds since the epoch."""
    watching: str
    """How file changes are detected: ``inotify`` or ``polling``."""
    allocations: Known
    resources: tuple[ResourceReport, ...]
    problems: tuple[Problem, ...] = ()
    """What is wrong, most urgent first; empty if all is well."""
    changes: tuple[Change, ...] = ()
    """The last changes, newest first: up to 100 of allocations, and up to 100 others."""
    runbook_url: str = ""
    """Address of docs/runbook.md for links, from the configuration; empty if it is not configured."""
    selinux: bool | None = None
    """Whether the kernel has booted with SELinux, without which an unchanged Android finds no services; None if that is
    unknown."""
    advisories: tuple[str, ...] = ()
    """What is known to be wrong with the node's binder driver, and where that was reported."""
    process: ProcessReport | None = None
    """The process of the plugin."""
    last_reload: ReloadReport | None = None
    """None before the first reload."""
