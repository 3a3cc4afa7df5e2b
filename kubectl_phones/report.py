"""The document that ``kubectl phones -o json`` prints. Times are seconds since the epoch.

``schema.json`` is generated from these types.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class PluginState(enum.StrEnum):
    """The state of the plugin on a node."""

    READY = "ready"
    NOT_READY = "not-ready"
    ABSENT = "absent"
    """No pod of the plugin, although its DaemonSet selects the node, or the node has or had phones."""
    OUTSIDE = "outside"
    """No pod, but the node has allocatable phones: the plugin runs outside the cluster, such as by systemd."""
    UNKNOWN = "unknown"
    """The plugin's pods could not be read."""


class PhoneState(enum.StrEnum):
    """The state of a pod with phones, or of a device without a pod."""

    RUNNING = "running"
    STARTING = "starting"
    NOT_READY = "not-ready"
    """It runs, but not all of its containers are ready."""
    WAITING = "waiting"
    """It has not been scheduled."""
    FAILING = "failing"
    """A container does not start, or ends again and again."""
    FAILED = "failed"
    """It has ended, for example because the kubelet rejected it. It has no phone any more."""
    TERMINATING = "terminating"
    LOST = "lost"
    """Its node is not ready."""
    UNHEALTHY = "unhealthy"
    """Its device is unhealthy."""
    FREE = "free"


class Kind(enum.StrEnum):
    """The kinds of problems, the worst first."""

    NO_PHONES = "no-phones"
    """The cluster has no phones at all, or a node has none although its plugin is ready."""
    NODE_NOT_READY = "node-not-ready"
    PLUGIN_ABSENT = "plugin-absent"
    PLUGIN_NOT_READY = "plugin-not-ready"
    STARTUP_TAINT = "startup-taint"
    """The node has a taint of the plugin, which keeps pods away until it has phones."""
    KUBELET_DISAGREES = "kubelet-disagrees"
    """An Event of the plugin says that the kubelet has fewer healthy phones than the plugin."""
    SLICES_INCOMPLETE = "slices-incomplete"
    """The API server does not have all ResourceSlices of the node."""
    UNHEALTHY = "unhealthy"
    OTHER_PLUGIN = "other-plugin"
    """An Event of the plugin says that another plugin serves the same resource on the node."""


@dataclass(frozen=True)
class Problem:
    """A problem of a node."""

    kind: Kind
    node: str
    """Empty for a problem of the cluster."""
    resource: str
    """Empty if it concerns all resources."""
    detail: str
    since: float | None


@dataclass(frozen=True)
class NodeRow:
    """A resource of a node."""

    node: str
    ready: bool
    """Whether the Node is ready."""
    resource: str
    """Empty if the node should have phones and has none."""
    api: str
    """``device-plugin`` or ``dra``; empty if ``resource`` is empty."""
    phones: int
    allocatable: int
    """Healthy phones according to the Node object or the ResourceSlices, including those in use."""
    used: int | None
    """Phones that pods have; null if it is unknown."""
    unhealthy: int
    plugin: PluginState
    plugin_pod: str
    """Namespace and name; empty if there is none."""
    since: float | None
    """When the plugin got into its state."""


@dataclass(frozen=True)
class PhoneRow:
    """The phones of a pod, or a device without a pod."""

    resource: str
    node: str
    """Empty if the pod has not been scheduled."""
    namespace: str
    pod: str
    """Empty for a device without a pod."""
    count: int
    """Number of phones."""
    devices: tuple[str, ...]
    """IDs; empty if they are unknown."""
    state: PhoneState
    reason: str
    problem: bool
    created: float | None
    """When the pod was created."""
    since: float | None
    """When it got into its state, if that is known."""


@dataclass(frozen=True)
class Totals:
    """The sums of all rows."""

    nodes: int
    nodes_with_problems: int
    phones: int
    allocatable: int
    used: int | None
    unhealthy: int
    waiting: int
    """Phones of pods that have not been scheduled."""
    phones_with_problems: int
    """Phones whose row has a problem."""


@dataclass(frozen=True)
class Fleet:
    """The phones of a cluster, as far as the options select them."""

    time: float
    totals: Totals
    problems: tuple[Problem, ...]
    nodes: tuple[NodeRow, ...]
    phones: tuple[PhoneRow, ...]
    """Rows with a problem come first."""
    missing: tuple[str, ...]
    """Lines that say what is not shown because it could not be read, and why."""
    complete: bool
    """Whether nodes, pods and the plugin's pods could be read."""
