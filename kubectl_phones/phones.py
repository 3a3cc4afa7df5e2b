"""The rows of phones: pods that have or request phones, and devices without a pod. Everything here is pure."""

from collections.abc import Collection, Iterator

from kubectl_phones.devices import Device, Devices
from kubectl_phones.gather import Cluster
from kubectl_phones.objects import Pod
from kubectl_phones.pods import PodState, pod_state
from kubectl_phones.report import PhoneRow, PhoneState


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
