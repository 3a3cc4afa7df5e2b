"""What is read of a cluster: the fields of objects that the rows depend on. Times are seconds since the epoch."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class Condition(NamedTuple):
    """A condition of a Node or a pod."""

    status: str
    """True, False or Unknown."""
    reason: str
    message: str
    since: float | None


class Node(Struct, frozen=True):
    """A Node."""

    name: str
    labels: dict[str, str]
    capacity: dict[str, int]
    """Of extended resources."""
    allocatable: dict[str, int]
    ready: Condition
    unschedulable: bool = False


class DeviceHealth(NamedTuple):
    """What the kubelet reports in a pod's status about one of its devices."""

    resource: str
    id: str
    health: str
    """Healthy, Unhealthy or Unknown."""


class Pod(Struct, frozen=True, gc=False):
    """A pod that may have phones."""

    namespace: str
    name: str
    uid: str
    node: str
    """Empty until it is scheduled."""
    created: float
    deleted: float | None
    """When it should end; None if it has not been deleted."""
    limits: dict[str, int]
    """Extended resources of its containers."""
    claims: tuple[str, ...]
    """Names of its ResourceClaims."""
    phase: str
    reason: str
    message: str
    ready: bool
    conditions: dict[str, Condition] = {}
    """Empty if it is ready."""
    waiting: tuple[tuple[str, str], ...] = ()
    """Reason and message of each container that waits or has failed."""
    devices: tuple[DeviceHealth, ...] = ()


class PluginPod(Struct, frozen=True):
    """A pod of the plugin's DaemonSet."""

    namespace: str
    name: str
    node: str
    created: float
    deleted: float | None
    revision: str
    """Of the DaemonSet; plugins of a revision have the same configuration."""
    address: str
    """IP address; empty until it has one."""
    port: int
    ready: bool
    since: float | None
    """Since when it is ready or not."""
    problem: str
    """Why it is not ready, as far as the API server knows."""


class DaemonSet(NamedTuple):
    """A DaemonSet of the plugin."""

    namespace: str
    name: str
    node_selector: dict[str, str]
    affinity: bool
    """Whether it has an affinity, which is not evaluated."""


class SliceDevice(NamedTuple):
    """A device of a ResourceSlice."""

    name: str
    id: str
    """The attribute ``id``, or the name."""
    taints: tuple[str, ...]
    """Key and value of each, such as phone.aosp.io/unhealthy=missing."""
    tainted: float | None
    """Since when it has the first one."""


class Slice(NamedTuple):
    """A ResourceSlice."""

    driver: str
    node: str
    pool: str
    generation: int
    wanted: int
    """Number of slices that the pool should have."""
    devices: tuple[SliceDevice, ...]


class Claim(NamedTuple):
    """A ResourceClaim."""

    namespace: str
    name: str
    created: float
    classes: tuple[str, ...]
    """Name of the device class of each requested device; empty if it is allocated."""
    devices: tuple[tuple[str, str, str], ...]
    """Driver, pool and name of each allocated device."""
    pods: tuple[tuple[str, str], ...]
    """Name and UID of the pods that it is reserved for."""


class DeviceClass(NamedTuple):
    """A DeviceClass."""

    name: str
    expressions: tuple[str, ...]
    resource: str
    """The extended resource that it provides; may be empty."""


class PluginDevice(Struct, frozen=True, gc=False):
    """A device of a resource, as the plugin reports it."""

    id: str
    state: str
    """leaked, unhealthy, allocated, free or unknown."""
    reason: str
    detail: str
    pods: tuple[tuple[str, str], ...]
    """Namespace and name."""
    since: float | None


class PluginResource(Struct, frozen=True):
    """A resource of a plugin. None means unknown."""

    name: str
    healthy: int
    unhealthy: dict[str, int]
    """Number of devices by reason."""
    registered: bool | None = None
    problem: str = ""
    problem_since: float | None = None
    notice: str = ""
    allocated: int | None = None
    leaked: int | None = None
    kubelet_allocatable: int | None = None
    """Healthy devices that the kubelet has."""
    kubelet_published: int | None = None
    """Healthy devices that the plugin had published when the kubelet answered."""
    expected: int | None = None
    slices: int | None = None
    slices_confirmed: int | None = None
    devices: tuple[PluginDevice, ...] | None = None


class PluginAnswer(Struct, frozen=True):
    """What a plugin has answered."""

    source: str
    """status, metrics, readyz, or empty if nothing could be read."""
    resources: tuple[PluginResource, ...] = ()
    version: str = ""
    ready: str = ""
    """The text of /readyz, if it was asked."""


class Cluster(Struct, frozen=True):
    """Everything that was read. None means that it could not be read."""

    time: float
    nodes: tuple[Node, ...] | None
    pods: tuple[Pod, ...] | None
    plugin_pods: tuple[PluginPod, ...] | None
    daemon_sets: tuple[DaemonSet, ...] | None = ()
    slices: tuple[Slice, ...] | None = ()
    claims: tuple[Claim, ...] | None = ()
    classes: tuple[DeviceClass, ...] | None = ()
    answers: dict[tuple[str, str], PluginAnswer] = {}
    """Of plugins, by namespace and name of the pod."""
    missing: tuple[str, ...] = ()
    """What could not be read, and why, a line each."""
