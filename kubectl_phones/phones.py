"""The rows of phones: pods that have or request phones, and devices without a pod. Everything here is pure."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from kubectl_phones.devices import Device, Devices
from kubectl_phones.gather import Cluster
from kubectl_phones.objects import Node, Pod, joined
from kubectl_phones.report import PhoneRow, PhoneState

PATIENCE: Final = 300.0
"""Seconds for which a pod may start, end, or not be ready, before that is a problem."""

_USUAL: Final = frozenset({"ContainerCreating", "PodInitializing", ""})


class PodState(NamedTuple):
    """The state of a pod."""

    state: PhoneState
    reason: str = ""
    since: float | None = None
    problem: bool = False


def pod_state(pod: Pod, node: Node | None, now: float) -> PodState:
    """Return the state of a pod; ``node`` is None if its node is unknown."""
    if pod.phase == "Failed":
        return PodState(PhoneState.FAILED, pod.problem or _waiting(pod), None, problem=True)
    if pod.deleted is not None:
        late = now - pod.deleted
        reason = f"should have ended {late:.0f} s ago" if late > PATIENCE else ""
        return PodState(PhoneState.TERMINATING, reason, pod.deleted, problem=bool(reason))
    if not pod.node or pod.scheduled.status == "False":  # a pod of the plugin has a node before it is scheduled
        return _unscheduled(pod, now)
    if node is not None and node.ready.status != "True":
        reason = joined("node not ready", node.ready.reason)
        return PodState(PhoneState.LOST, reason, node.ready.since, problem=True)
    return _placed(pod, now)


def _placed(pod: Pod, now: float) -> PodState:
    """Return the state of a pod on a node that is ready."""
    if pod.ready.status == "True":
        return PodState(PhoneState.RUNNING)
    since = pod.created if pod.ready.since is None else pod.ready.since
    if any(reason not in _USUAL for reason, _ in pod.waiting):
        return PodState(PhoneState.FAILING, _waiting(pod), since, problem=True)
    late = now - since > PATIENCE
    if pod.phase == "Running":
        return PodState(PhoneState.NOT_READY, pod.ready.message or pod.ready.reason, since, problem=late)
    return PodState(PhoneState.STARTING, _waiting(pod), since, problem=late)


def _waiting(pod: Pod) -> str:
    """Return what the containers wait for, the unusual first."""
    texts = [joined(*each) for each in sorted(pod.waiting, key=lambda each: each[0] in _USUAL)]
    return texts[0] if texts else ""


def _unscheduled(pod: Pod, now: float) -> PodState:
    scheduled = pod.scheduled
    if scheduled.status != "False":
        late = now - pod.created > PATIENCE
        return PodState(PhoneState.WAITING, "no scheduler has handled it" if late else "", pod.created, problem=late)
    gated = scheduled.reason == "SchedulingGated"
    return PodState(PhoneState.WAITING, scheduled.message or scheduled.reason, scheduled.since, problem=not gated)


def phone_rows(cluster: Cluster, devices: Devices, names: Collection[str], *, subset: bool) -> Iterator[PhoneRow]:
    """Yield a row for each pod and resource, and for each device that no pod has.

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
                if not device.used:
                    yield _device_row(node, resource, device)


def _pod_row(pod: Pod, resource: str, state: PodState, devices: Devices) -> PhoneRow | None:
    """Return the row of a pod; None if it has no phones of the resource, and requests none."""
    owner = (pod.namespace, pod.name)
    limit, requested = pod.limits.get(resource, 0), devices.requested.get((owner, resource), 0)
    ids = tuple(devices.of_pods.get((owner, resource), ()))
    if not (limit or requested or ids):
        return None
    if not state.problem:
        state = _unhealthy(pod, resource, ids, devices) or state
    return PhoneRow(
        resource=resource,
        node=pod.node,
        namespace=pod.namespace,
        pod=pod.name,
        count=max(limit, len(ids) + requested),
        devices=ids,
        state=state.state,
        reason=state.reason,
        problem=state.problem,
        created=pod.created,
        since=state.since,
    )


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
    return PodState(PhoneState.UNHEALTHY, "; ".join(dict.fromkeys(reasons)), since, problem=True)


def _device_row(node: str, resource: str, device: Device) -> PhoneRow:
    state, problem = PhoneState.UNHEALTHY if device.reason else PhoneState.FREE, bool(device.reason)
    return PhoneRow(resource, node, "", "", 1, (device.id,), state, device.reason, problem, None, device.since)
