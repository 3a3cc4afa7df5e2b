"""What is wrong with a node. Everything here is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.cli.fleet.report import Kind, PluginState, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.cli.fleet.cluster import Cluster, PluginResource
    from aosp_plugin.cli.fleet.nodes import NodeView
    from aosp_plugin.cli.fleet.report import NodeRow


def node_problems(view: NodeView) -> Iterator[Problem]:
    """Yield the problems of a node."""
    node = view.node
    if node.ready.status != "True":
        detail = ": ".join(text for text in (node.ready.reason, node.ready.message) if text)
        yield Problem(Kind.NODE_NOT_READY, node.name, "", detail, node.ready.since)
    yield from _plugin_problems(view)
    for row in view.rows:
        reported = view.reported.get(row.resource)
        if row.resource:
            yield from _resource_problems(row, reported)
        if row.phones == 0 and row.plugin is PluginState.READY:
            detail = f"the plugin is ready, and the node has no {row.resource or 'phones'}"
            yield Problem(Kind.NO_PHONES, node.name, row.resource, detail, row.since)


def slice_problems(cluster: Cluster, names: dict[str, str]) -> Iterator[Problem]:
    """Yield the pools of which slices are missing; ``names`` has the resource of each driver."""
    pools: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for each in cluster.slices or ():
        if each.driver in names:
            pools.setdefault((each.driver, each.pool), []).append((each.node, each.generation, each.wanted))
    for (driver, pool), found in pools.items():
        node, generation, count = max(found, key=lambda each: each[1])
        current = sum(each[1] == generation for each in found)
        if current < count:
            detail = f"the pool {pool} has {current} of {count} ResourceSlices"
            yield Problem(Kind.SLICES_INCOMPLETE, node, names[driver], detail, None)


def _plugin_problems(view: NodeView) -> Iterator[Problem]:
    name, pod, state = view.node.name, view.plugin.pod, view.plugin.state
    if state is PluginState.ABSENT:
        used = sum(row.used or 0 for row in view.rows)
        phones = f"; {_phones(used)} in use" if used else ""
        yield Problem(Kind.PLUGIN_ABSENT, name, "", f"the node has no pod of the plugin{phones}", None)
    elif state is PluginState.NOT_READY and pod is not None:
        answer = view.plugin.answer
        detail = "its pod is being deleted" if pod.deleted is not None else pod.problem
        if answer is not None and answer.ready and pod.deleted is None:
            detail = answer.ready
        yield Problem(Kind.PLUGIN_NOT_READY, name, "", detail or "unknown", pod.since or pod.created)
    for resource in view.reported.values():
        if state is PluginState.READY and resource.problem:
            yield Problem(Kind.PLUGIN_NOT_READY, name, resource.name, resource.problem, resource.problem_since)


def _resource_problems(row: NodeRow, reported: PluginResource | None) -> Iterator[Problem]:
    if reported is None:
        if row.unhealthy:
            detail = f"{row.unhealthy:,} of {_phones(row.phones)}"
            yield Problem(Kind.UNHEALTHY, row.node, row.resource, detail, None)
        return
    if detail := _disagreement(row, reported):
        kind = Kind.SLICES_INCOMPLETE if row.api == "dra" else Kind.KUBELET_DISAGREES
        yield Problem(kind, row.node, row.resource, detail, None)
    total = reported.healthy + sum(reported.unhealthy.values())
    if reported.expected is not None and total < reported.expected:
        detail = f"{total:,} of {reported.expected:,} provisioned phones exist"
        yield Problem(Kind.PHONES_MISSING, row.node, row.resource, detail, None)
    if reported.leaked:
        yield Problem(Kind.LEAKED, row.node, row.resource, _phones(reported.leaked), None)
    if reported.unhealthy:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reported.unhealthy.items()))
        times = [device.since for device in reported.devices or () if device.reason and device.since is not None]
        detail = f"{sum(reported.unhealthy.values()):,} of {_phones(total)}: {reasons}"
        yield Problem(Kind.UNHEALTHY, row.node, row.resource, detail, min(times, default=None))
    if reported.notice:
        yield Problem(Kind.OTHER_PLUGIN, row.node, row.resource, reported.notice, None)


def _disagreement(row: NodeRow, reported: PluginResource) -> str:
    """Return how plugin and kubelet, or plugin and API server, differ."""
    if row.api == "dra":
        confirmed, wanted = reported.slices_confirmed, reported.slices
        if confirmed is not None and wanted is not None and confirmed < wanted:
            return f"the API server has {confirmed:,} of {wanted:,} ResourceSlices as they should be"
        return ""
    published = reported.healthy if reported.kubelet_published is None else reported.kubelet_published
    kubelet = reported.kubelet_allocatable
    if kubelet is not None and kubelet != published:
        return f"the kubelet has {kubelet:,} healthy phones, the plugin {published:,}"
    if reported.registered is not False and row.allocatable != reported.healthy:
        return f"the Node object has {row.allocatable:,} allocatable phones, the plugin {reported.healthy:,} healthy"
    return ""


def _phones(count: int) -> str:
    return f"{count:,} phone{'s' * (count != 1)}"
