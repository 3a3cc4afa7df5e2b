"""The document that ``kubectl phones -o json`` prints. Times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

PluginState: TypeAlias = Literal["ready", "not-ready", "absent", "outside", "unknown"]
"""The state of the plugin on a node. The README has what ``absent`` and ``outside`` mean; its pods could not be read if
it is ``unknown``."""

PhoneState: TypeAlias = Literal[
    "running", "starting", "not-ready", "waiting", "failing", "failed", "terminating", "lost", "unhealthy"
]
"""The state of a pod with phones: ``waiting`` until it is scheduled, ``failing`` if a container does not start or ends
again and again, ``failed`` if it has ended and has no phone any more, ``lost`` if its node is not ready. It is
``unhealthy`` if its device is, like the row of a device without a pod."""

KINDS: Final = ("no-phones", "node-not-ready", "plugin-absent", "plugin-not-ready", "startup-taint", "unhealthy")
"""The kinds of problems, the worst first. Those that the plugin reports in Events come after them."""


@dataclass(frozen=True)
class Problem:
    """A problem of a node."""

    kind: str
    """One of ``KINDS``, or the reason of an Event of the plugin, such as ``second-plugin``."""
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
    """The phones of a pod, or an unhealthy device without a pod."""

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
    phones: int
    allocatable: int
    used: int | None
    unhealthy: int
    waiting: int
    """Phones of pods that have not been scheduled."""


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
