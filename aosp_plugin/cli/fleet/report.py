"""The document that ``kubectl phones -o json`` prints. Times are seconds since the epoch.

``docs/fleet.schema.json`` is generated from these types.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class PluginState(enum.StrEnum):
    """The plugin of a node."""

    READY = "ready"
    NOT_READY = "not-ready"
    ABSENT = "absent"
    """No pod of the plugin, although its DaemonSet selects the node, or the node has or had phones."""
    OUTSIDE = "outside"
    """No pod, but the node has allocatable phones: the plugin runs outside the cluster, such as by systemd."""
    UNKNOWN = "unknown"
    """The plugin's pods could not be read."""


class PhoneState(enum.StrEnum):
    """What the pod of a phone does, or what a device without a pod is."""

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
    LEAKED = "leaked"
    """A process outside its pod holds its device open."""
    FREE = "free"
    UNKNOWN = "unknown"
    """The pod could not be read."""


class Kind(enum.StrEnum):
    """What is wrong with a node, the worst first."""

    NO_PHONES = "no-phones"
    """Of the cluster, if it has no phones at all, or of a node whose plugin is ready."""
    NODE_NOT_READY = "node-not-ready"
    PLUGIN_ABSENT = "plugin-absent"
    PLUGIN_NOT_READY = "plugin-not-ready"
    KUBELET_DISAGREES = "kubelet-disagrees"
    """The kubelet, or the Node object, has another number of healthy phones than the plugin."""
    SLICES_INCOMPLETE = "slices-incomplete"
    """The API server does not have all ResourceSlices of the node."""
    PHONES_MISSING = "phones-missing"
    """There are fewer phones than the configuration provisions."""
    LEAKED = "leaked"
    UNHEALTHY = "unhealthy"
    OTHER_PLUGIN = "other-plugin"
    """Another plugin serves the same resource on the node."""


class Problem(Struct, frozen=True):
    """A problem of a node."""

    kind: Kind
    node: str
    """Empty for a problem of the cluster."""
    resource: str
    """Empty if it concerns all resources."""
    detail: str
    since: float | None


class NodeRow(Struct, frozen=True):
    """A resource of a node."""

    node: str
    ready: bool
    """Whether the Node is ready."""
    resource: str
    """Empty if the node should have phones and has none."""
    api: str
    """``device-plugin`` or ``dra``; empty if the resource is."""
    phones: int
    allocatable: int
    """Healthy phones according to the Node object or the ResourceSlices, including those in use."""
    used: int | None
    """Phones that pods have; null if it is unknown."""
    unhealthy: int
    plugin: PluginState
    plugin_pod: str
    """Namespace and name; empty if there is none."""
    plugin_version: str
    """Empty if it is unknown."""
    source: str
    """What the plugin has answered: ``status``, ``metrics``, ``readyz``, or empty if nothing."""
    since: float | None
    """Since when the plugin is in its state."""


class PhoneRow(Struct, frozen=True, gc=False):
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
    """Of the pod."""
    since: float | None
    """When it got into its state, if that is known."""


class Totals(Struct, frozen=True):
    """Numbers of all rows together."""

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


class Fleet(Struct, frozen=True):
    """The phones of a cluster, as far as the options select them."""

    time: float
    totals: Totals
    problems: tuple[Problem, ...]
    nodes: tuple[NodeRow, ...]
    phones: tuple[PhoneRow, ...]
    """Those with a problem first."""
    missing: tuple[str, ...]
    """What could not be read, such as a missing right, and what is missing therefore."""
    complete: bool
    """Whether nodes, pods and the plugin's pods could be read."""
