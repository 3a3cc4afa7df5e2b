"""The rows of phones and of nodes. Everything here is pure."""

import collections
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kubectl_phones.devices import Devices, Place
from kubectl_phones.gather import Cluster
from kubectl_phones.objects import Node, Object, Pod, joined
from kubectl_phones.report import NodeRow, PhoneRow, PhoneState, PluginState

PATIENCE: Final = 300.0
"""Seconds for which a pod may start, end, or not be ready, before that is a problem."""

_USUAL: Final = frozenset({"ContainerCreating", "PodInitializing", ""})


class PodState(NamedTuple):
    """The state of a pod."""

    state: PhoneState
    reason: str = ""
    since: float | None = None
    problem: bool = False


class NodeView(NamedTuple):
    """A node, its plugin and its rows."""

    node: Node
    plugin: PluginState
    pod: Pod | None
    rows: Sequence[NodeRow]


def pod_state(pod: Pod, node: Node | None, now: float) -> PodState:
    """Return the state of a pod; ``node`` is None if its node is unknown."""
    if pod.phase == "Failed":
        return PodState("failed", pod.problem or _waiting(pod), None, problem=True)
    if pod.deleted is not None:
        late = now - pod.deleted
        reason = f"should have ended {late:.0f} s ago" if late > PATIENCE else ""
        return PodState("terminating", reason, pod.deleted, problem=bool(reason))
    if not pod.node or pod.scheduled.status == "False":  # a pod of the plugin has a node before it is scheduled
        return _unscheduled(pod, now)
    if node is not None and node.ready.status != "True":
        reason = joined("node not ready", node.ready.reason)
        return PodState("lost", reason, node.ready.since, problem=True)
    return _placed(pod, now)


def _placed(pod: Pod, now: float) -> PodState:
    """Return the state of a pod on a node that is ready."""
    if pod.ready.status == "True":
        return PodState("running")
    since = pod.created if pod.ready.since is None else pod.ready.since
    if any(reason not in _USUAL for reason, _ in pod.waiting):
        return PodState("failing", _waiting(pod), since, problem=True)
    late = now - since > PATIENCE
    if pod.phase == "Running":
        return PodState("not-ready", pod.ready.message or pod.ready.reason, since, problem=late)
    return PodState("starting", _waiting(pod), since, problem=late)


def _waiting(pod: Pod) -> str:
    """Return what the containers wait for, the unusual first."""
    texts = [joined(*each) for each in sorted(pod.waiting, key=lambda each: each[0] in _USUAL)]
    return texts[0] if texts else ""


def _unscheduled(pod: Pod, now: float) -> PodState:
    scheduled = pod.scheduled
    if scheduled.status != "False":
        late = now - pod.created > PATIENCE
        return PodState("waiting", "no scheduler has handled it" if late else "", pod.created, problem=late)
    gated = scheduled.reason == "SchedulingGated"
    return PodState("waiting", scheduled.message or scheduled.reason, scheduled.since, problem=not gated)


def phone_rows(cluster: Cluster, devices: Devices, names: Collection[str], *, subset: bool) -> Iterator[PhoneRow]:
    """Yield a row for each pod and resource, and for each unhealthy device that no pod has.

    ``subset``: only some pods were read, so that nothing is known of the others.
    """
    nodes = {node.name: node for node in cluster.nodes or ()}
    for pod in cluster.pods or ():
        for resource in names:
            state = pod_state(pod, nodes.get(pod.node), cluster.time)
            if row := _pod_row(pod, resource, state, devices):
                yield row
    if not subset:
        for (node, resource), found in devices.by_place.items():
            for device in found.values():
                if device.reason and not device.used:
                    state = PodState("unhealthy", device.reason, device.since, problem=True)
                    yield _phone_row(resource, node, None, (device.id,), 1, state)


def _pod_row(pod: Pod, resource: str, state: PodState, devices: Devices) -> PhoneRow | None:
    """Return the row of a pod; None if it has no phones of the resource, and requests none."""
    owner = (pod.namespace, pod.name)
    limit, requested = pod.limits.get(resource, 0), devices.requested.get((owner, resource), 0)
    ids = tuple(devices.of_pods.get((owner, resource), ()))
    if not (limit or requested or ids):
        return None
    if not state.problem:
        state = _unhealthy(pod, resource, ids, devices) or state
    return _phone_row(resource, pod.node, pod, ids, max(limit, len(ids) + requested), state)


def _unhealthy(pod: Pod, resource: str, ids: Collection[str], devices: Devices) -> PodState | None:
    """Return the state of a pod with unhealthy devices; None if it has none."""
    published = devices.by_place.get((pod.node, resource), {})
    bad = [published[name] for name in ids if name in published and published[name].reason]
    reasons = [device.reason for device in bad]
    if not bad:
        reported = [name for of, name, health in pod.devices if of == resource and health == "Unhealthy"]
        reasons = [f"the kubelet reports {name} as unhealthy" for name in reported]
    if not reasons:
        return None
    since = min((device.since for device in bad if device.since is not None), default=None)
    return PodState("unhealthy", "; ".join(dict.fromkeys(reasons)), since, problem=True)


def _phone_row(
    resource: str, node: str, pod: Pod | None, devices: tuple[str, ...], count: int, state: PodState
) -> PhoneRow:
    """Return the row of a pod, or of a device without one."""
    return PhoneRow(
        resource=resource,
        node=node,
        namespace=pod.namespace if pod else "",
        pod=pod.name if pod else "",
        count=count,
        devices=devices,
        state=state.state,
        reason=state.reason,
        problem=state.problem,
        created=pod.created if pod else None,
        since=state.since,
    )


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
        if row.pod and row.node and row.state != "failed":
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
        return "unknown"
    if pod is not None:
        return "ready" if is_ready(pod) else "not-ready"
    return "outside" if outside else "absent"


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
    known = found is not None or plugin in {"ready", "outside"}
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
