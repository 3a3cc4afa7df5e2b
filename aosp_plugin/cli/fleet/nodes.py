"""The rows of nodes. Everything here is pure."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.cli.fleet.devices import plugin_answers, plugin_resources
from aosp_plugin.cli.fleet.report import NodeRow, PluginState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from aosp_plugin.cli.fleet.cluster import Cluster, DaemonSet, Node, PluginAnswer, PluginPod, PluginResource
    from aosp_plugin.cli.fleet.devices import Devices, Place
    from aosp_plugin.cli.fleet.report import PhoneRow


class Plugin(NamedTuple):
    """The plugin of a node."""

    state: PluginState
    pod: PluginPod | None
    answer: PluginAnswer | None


class NodeView(NamedTuple):
    """A node, its plugin and its rows."""

    node: Node
    plugin: Plugin
    rows: Sequence[NodeRow]
    reported: Mapping[str, PluginResource]
    """What the plugin has answered, by resource."""


def node_views(
    cluster: Cluster, devices: Devices, phones: Collection[PhoneRow], names: Collection[str], *, subset: bool
) -> Iterator[NodeView]:
    """Yield the nodes that have phones, or should have some."""
    pods: dict[str, list[PluginPod]] = collections.defaultdict(list)
    for pod in cluster.plugin_pods or ():
        pods[pod.node].append(pod)
    answers, reported = plugin_answers(cluster), plugin_resources(cluster)
    used = None if subset or (cluster.pods is None and not devices.dra) else used_phones(phones)
    for node in cluster.nodes or ():
        own = {name: reported[node.name, name] for name in names if (node.name, name) in reported}
        served = [name for name in names if _served(node, name, own, devices, used)]
        expected = any(_selects(daemon_set, node) for daemon_set in cluster.daemon_sets or ())
        plugin = _plugin(
            cluster, node, pods.get(node.name, ()), served, devices, answers.get(node.name), expected=expected
        )
        if not served and plugin.pod is None and not expected:
            continue
        rows = [_row(node, name, plugin, own.get(name), devices, used) for name in served]
        yield NodeView(node, plugin, rows or [_empty_row(node, plugin)], own)


def used_phones(phones: Collection[PhoneRow]) -> Mapping[Place, int]:
    """Return the number of phones that pods have, by node and resource. A shared one counts once."""
    known: dict[Place, set[str]] = collections.defaultdict(set)
    others: dict[Place, int] = collections.defaultdict(int)
    for row in phones:
        if row.pod and row.node and row.state != "failed":
            known[row.node, row.resource].update(row.devices)
            others[row.node, row.resource] += max(row.count - len(row.devices), 0)
    return {place: len(ids) + others[place] for place, ids in known.items()}


def _served(
    node: Node,
    name: str,
    reported: Mapping[str, PluginResource],
    devices: Devices,
    used: Mapping[Place, int] | None,
) -> bool:
    """Return whether a node has phones of a resource. Kubernetes keeps a capacity of 0 after the plugin's end."""
    place = node.name, name
    return bool(node.capacity.get(name) or name in reported or place in devices.by_place or (used or {}).get(place))


def _selects(daemon_set: DaemonSet, node: Node) -> bool:
    """Return whether a DaemonSet certainly wants a pod on a node; its affinity is not evaluated."""
    selector = daemon_set.node_selector
    return not daemon_set.affinity and all(node.labels.get(name) == value for name, value in selector.items())


def _plugin(
    cluster: Cluster,
    node: Node,
    pods: Sequence[PluginPod],
    served: Sequence[str],
    devices: Devices,
    answer: PluginAnswer | None,
    *,
    expected: bool,
) -> Plugin:
    if cluster.plugin_pods is None:
        return Plugin(PluginState.UNKNOWN, None, None)
    if pods:
        pod = max(pods, key=lambda pod: (pod.ready and pod.deleted is None, pod.deleted is None, pod.created))
        state = PluginState.READY if pod.ready and pod.deleted is None else PluginState.NOT_READY
        return Plugin(state, pod, answer)
    active = any(node.allocatable.get(name) or (node.name, name) in devices.dra for name in served)
    return Plugin(PluginState.OUTSIDE if active and not expected else PluginState.ABSENT, None, None)


def _row(
    node: Node,
    name: str,
    plugin: Plugin,
    reported: PluginResource | None,
    devices: Devices,
    used: Mapping[Place, int] | None,
) -> NodeRow:
    place = node.name, name
    dra = place in devices.dra or (reported is not None and reported.slices is not None)
    if dra:
        found = devices.by_place.get(place, ())
        phones, allocatable = len(found), sum(not device.reason for device in found)
    else:
        phones, allocatable = node.capacity.get(name, 0), node.allocatable.get(name, 0)
    if reported is not None:
        phones = max(phones, reported.healthy + sum(reported.unhealthy.values()))
        unhealthy = sum(reported.unhealthy.values())
    else:
        # Without a plugin, the kubelet has no healthy device; that says nothing about the devices.
        unhealthy = phones - allocatable if dra or plugin.state in {PluginState.READY, PluginState.OUTSIDE} else 0
    count = reported.allocated if used is None and reported is not None else (used or {}).get(place, 0)
    pod = plugin.pod
    return NodeRow(
        node=node.name,
        ready=node.ready.status == "True",
        resource=name,
        api="dra" if dra else "device-plugin",
        phones=phones,
        allocatable=allocatable,
        used=None if used is None and reported is None else count,
        unhealthy=unhealthy,
        plugin=plugin.state,
        plugin_pod=f"{pod.namespace}/{pod.name}" if pod else "",
        plugin_version=plugin.answer.version if plugin.answer else "",
        source=plugin.answer.source if plugin.answer else "",
        since=pod.since if pod else None,
    )


def _empty_row(node: Node, plugin: Plugin) -> NodeRow:
    pod, ready = plugin.pod, node.ready.status == "True"
    name, since = (f"{pod.namespace}/{pod.name}", pod.since) if pod else ("", None)
    version, source = (plugin.answer.version, plugin.answer.source) if plugin.answer else ("", "")
    return NodeRow(node.name, ready, "", "", 0, 0, 0, 0, plugin.state, name, version, source, since)
