"""The rows of phones: pods that have or request phones, and devices without a pod. Everything here is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.cli.fleet.pods import PodState, pod_state
from aosp_plugin.cli.fleet.report import PhoneRow, PhoneState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from aosp_plugin.cli.fleet.cluster import Cluster, Node, Pod
    from aosp_plugin.cli.fleet.devices import Device, Devices, Owner


def phone_rows(cluster: Cluster, devices: Devices, names: Collection[str], *, subset: bool) -> Iterator[PhoneRow]:
    """Yield a row for each pod and resource, and for each device that no pod has.

    ``subset``: only some pods were read, so that nothing is known of the others.
    """
    nodes = {node.name: node for node in cluster.nodes or ()}
    unhealthy = {
        (node, resource, device.id): device
        for (node, resource), found in devices.by_place.items()
        for device in found
        if device.reason
    }
    known: set[Owner] = set()
    for pod in cluster.pods or ():
        known.add((pod.namespace, pod.name))
        yield from _pod_rows(pod, nodes.get(pod.node), cluster.time, devices, unhealthy, names)
    if subset:
        return
    if cluster.pods is None:
        yield from _unread_pods(devices, unhealthy, names, known)
    for (node, resource), found in devices.by_place.items():
        for device in found:
            if not device.pods:
                yield _device_row(node, resource, device)


def _pod_rows(
    pod: Pod,
    node: Node | None,
    now: float,
    devices: Devices,
    unhealthy: Mapping[tuple[str, str, str], Device],
    names: Collection[str],
) -> Iterator[PhoneRow]:
    owner = (pod.namespace, pod.name)
    for resource in names:
        limit = pod.limits.get(resource, 0)
        requested = devices.requested.get((owner, resource), 0) if devices.requested else 0
        had = devices.of_pods.get((owner, resource), ())
        if not (limit or requested or had):
            continue
        state = pod_state(pod, node, now)
        bad = [unhealthy[place] for at, device in had if (place := (at, resource, device)) in unhealthy]
        ids = tuple(device for _, device in had)
        if bad and not state.problem:
            state = _unhealthy(bad)
        yield PhoneRow(
            resource=resource,
            node=pod.node,
            namespace=pod.namespace,
            pod=pod.name,
            count=max(limit, len(had) + requested),
            devices=ids,
            state=state.state,
            reason=state.reason,
            problem=state.problem,
            created=pod.created,
            since=state.since,
        )


def _unhealthy(bad: Collection[Device]) -> PodState:
    """Return the state of a pod with unhealthy devices."""
    leaked = any(device.leaked for device in bad)
    reason = "; ".join(dict.fromkeys(device.reason for device in bad))
    since = min((device.since for device in bad if device.since is not None), default=None)
    return PodState(PhoneState.LEAKED if leaked else PhoneState.UNHEALTHY, reason, since, problem=True)


def _unread_pods(
    devices: Devices,
    unhealthy: Mapping[tuple[str, str, str], Device],
    names: Collection[str],
    known: Collection[Owner],
) -> Iterator[PhoneRow]:
    """Yield rows for pods that only claims and plugins name."""
    for ((namespace, name), resource), had in devices.of_pods.items():
        if resource not in names or (namespace, name) in known:
            continue
        bad = [unhealthy[place] for at, device in had if (place := (at, resource, device)) in unhealthy]
        state = _unhealthy(bad) if bad else PodState(PhoneState.UNKNOWN)
        ids = tuple(device for _, device in had)
        yield PhoneRow(
            resource, had[0][0], namespace, name, len(had), ids, state.state, state.reason, state.problem, None, None
        )


def _device_row(node: str, resource: str, device: Device) -> PhoneRow:
    state = PhoneState.LEAKED if device.leaked else PhoneState.UNHEALTHY if device.reason else PhoneState.FREE
    return PhoneRow(
        resource, node, "", "", 1, (device.id,), state, device.reason, bool(device.reason), None, device.since
    )
