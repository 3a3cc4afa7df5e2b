"""The rows of nodes. Everything here is pure."""

import collections
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from kubectl_phones.devices import Devices, Place
from kubectl_phones.gather import Cluster
from kubectl_phones.objects import Node, Object, Pod
from kubectl_phones.report import NodeRow, PhoneRow, PhoneState, PluginState


class NodeView(NamedTuple):
    """A node, its plugin and its rows."""

    node: Node
    plugin: PluginState
    pod: Pod | None
    rows: Sequence[NodeRow]


def node_views(
    cluster: Cluster, devices: Devices, phones: Collection[PhoneRow], names: Collection[str], *, subset: bool
) -> Iterator[NodeView]:
    """Yield the nodes that have phones, or should have some."""
    pods: dict[str, list[Pod]] = collections.defaultdict(list)
    for pod in cluster.plugin_pods or ():
        pods[pod.node].append(pod)
    used = None if subset or cluster.pods is None else used_phones(phones)
    for node in cluster.nodes or ():
        served = [name for name in names if _served(node, name, devices, used)]
        expected = any(_selects(daemon_set, node) for daemon_set in cluster.daemon_sets or ())
        own = max(pods[node.name], key=_rank, default=None)
        if served or own is not None or expected:
            active = any(node.allocatable.get(name) or (node.name, name) in devices.by_place for name in served)
            state = _state(cluster, own, outside=active and not expected)
            rows = [_row(node, name, state, own, devices, used) for name in served or [""]]
            yield NodeView(node, state, own, rows)


def used_phones(phones: Collection[PhoneRow]) -> Mapping[Place, int]:
    """Return the number of phones that pods have, by node and resource. A shared one counts once."""
    known: dict[Place, set[str]] = collections.defaultdict(set)
    others: dict[Place, int] = collections.defaultdict(int)
    for row in phones:
        if row.pod and row.node and row.state is not PhoneState.FAILED:
            known[row.node, row.resource].update(row.devices)
            others[row.node, row.resource] += max(row.count - len(row.devices), 0)
    return {place: len(ids) + others[place] for place, ids in known.items()}


def _served(node: Node, name: str, devices: Devices, used: Mapping[Place, int] | None) -> bool:
    """Return whether a node has phones of a resource. Kubernetes keeps a capacity of 0 after the plugin's end."""
    place = node.name, name
    return bool(node.capacity.get(name) or place in devices.by_place or (used or {}).get(place))


def _selects(daemon_set: Object, node: Node) -> bool:
    """Return whether a DaemonSet certainly wants a pod on a node; its affinity is not evaluated."""
    spec = daemon_set["spec"]["template"]["spec"]
    selector = spec.get("nodeSelector", {})
    return "affinity" not in spec and all(node.labels.get(name) == value for name, value in selector.items())


def is_ready(pod: Pod) -> bool:
    """Return whether a pod of the plugin is ready, and stays."""
    return pod.ready.status == "True" and pod.deleted is None


def _rank(pod: Pod) -> tuple[bool, bool, float]:
    """Return the sort key of a node's pods. The largest one counts, for example during a rolling update."""
    return is_ready(pod), pod.deleted is None, pod.created


def _state(cluster: Cluster, pod: Pod | None, *, outside: bool) -> PluginState:
    if cluster.plugin_pods is None:
        return PluginState.UNKNOWN
    if pod is not None:
        return PluginState.READY if is_ready(pod) else PluginState.NOT_READY
    return PluginState.OUTSIDE if outside else PluginState.ABSENT


def _row(
    node: Node,
    name: str,
    plugin: PluginState,
    pod: Pod | None,
    devices: Devices,
    used: Mapping[Place, int] | None,
) -> NodeRow:
    """Return the row of a resource; an empty name is for a node without phones."""
    place = node.name, name
    found = devices.by_place.get(place)
    if found is not None:
        api, phones, allocatable = "dra", len(found), sum(not device.reason for device in found.values())
    else:
        api, phones, allocatable = "device-plugin", node.capacity.get(name, 0), node.allocatable.get(name, 0)
    # Without a plugin, the kubelet has no healthy device; that says nothing about the devices.
    known = found is not None or plugin in {PluginState.READY, PluginState.OUTSIDE}
    return NodeRow(
        node=node.name,
        ready=node.ready.status == "True",
        resource=name,
        api=api if name else "",
        phones=phones,
        allocatable=allocatable,
        used=None if used is None else used.get(place, 0),
        unhealthy=phones - allocatable if known else 0,
        plugin=plugin,
        plugin_pod=f"{pod.namespace}/{pod.name}" if pod else "",
        since=pod.ready.since if pod else None,
    )
