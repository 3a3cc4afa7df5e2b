"""Objects of the API server, from protobuf to the fields that are needed. Everything here is pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from aosp_plugin.cli.fleet.cluster import (
    Claim,
    Condition,
    DaemonSet,
    DeviceClass,
    DeviceHealth,
    Node,
    PluginPod,
    Pod,
    Slice,
    SliceDevice,
)
from aosp_plugin.framework.api import objects_pb2
from aosp_plugin.framework.dra.slices import ID_ATTRIBUTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REVISION: Final = "controller-revision-hash"
"""The label of a DaemonSet's pods."""
PORT: Final = 9478
"""The plugin's default."""

_SUFFIXES: Final = {
    "": 1,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


def node(item: bytes) -> Node:
    """Return a Node."""
    message = objects_pb2.Node.FromString(item)
    metadata, status = message.metadata, message.status
    conditions = _conditions(status.conditions)
    return Node(
        name=metadata.name,
        labels=dict(metadata.labels),
        capacity=_extended(status.capacity),
        allocatable=_extended(status.allocatable),
        ready=conditions.get("Ready", Condition("Unknown", "", "", None)),
        unschedulable=message.spec.unschedulable,
    )


def pod(item: bytes) -> Pod | None:
    """Return a pod that requests an extended resource or a claim; None for others, and for one that has succeeded."""
    message = objects_pb2.Pod.FromString(item)
    spec, status = message.spec, message.status
    limits = _limits(spec)
    named = spec.resource_claims
    if not (limits or named) or status.phase == "Succeeded":
        return None
    metadata, containers = message.metadata, status.container_statuses
    ready = status.phase == "Running" and all(container.ready for container in containers)
    return Pod(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        node=spec.node_name,
        created=float(metadata.creation_timestamp.seconds),
        deleted=_time(metadata.deletion_timestamp) if metadata.HasField("deletion_timestamp") else None,
        limits=limits,
        claims=_claim_names(named, status.resource_claim_statuses) if named else (),
        phase=status.phase,
        reason=status.reason,
        message=status.message,
        ready=ready,
        conditions={} if ready else _conditions(status.conditions),
        waiting=() if ready else _waiting(containers),
        devices=tuple(
            DeviceHealth(entry.name, device.resource_id, device.health)
            for container in containers
            for entry in container.allocated_resources_status
            for device in entry.resources
        ),
    )


def plugin_pod(item: bytes) -> PluginPod | None:
    """Return a pod of the plugin's DaemonSet; None for a pod of another owner, such as that of ``helm test``."""
    message = objects_pb2.Pod.FromString(item)
    metadata, spec, status = message.metadata, message.spec, message.status
    if not any(owner.kind == "DaemonSet" for owner in metadata.owner_references):
        return None
    conditions = _conditions(status.conditions)
    ready = conditions.get("Ready", Condition("Unknown", "", "", None))
    ports = [port.container_port for each in spec.containers for port in each.ports if port.name == "http"]
    return PluginPod(
        namespace=metadata.namespace,
        name=metadata.name,
        node=spec.node_name or _target(spec),
        created=float(metadata.creation_timestamp.seconds),
        deleted=_time(metadata.deletion_timestamp) if metadata.HasField("deletion_timestamp") else None,
        revision=metadata.labels.get(REVISION, ""),
        address=status.pod_ip if status.phase == "Running" else "",
        port=ports[0] if ports else PORT,
        ready=ready.status == "True",
        since=ready.since,
        problem="" if ready.status == "True" else _problem(status, conditions),
    )


def daemon_set(item: bytes) -> DaemonSet:
    """Return a DaemonSet."""
    message = objects_pb2.DaemonSet.FromString(item)
    spec = message.spec.template.spec
    affinity = spec.HasField("affinity")
    return DaemonSet(message.metadata.namespace, message.metadata.name, dict(spec.node_selector), affinity)


def resource_slice(item: bytes) -> Slice | None:
    """Return a ResourceSlice of a node; None for one that is not for a single node."""
    spec = objects_pb2.ResourceSlice.FromString(item).spec
    if not spec.node_name:
        return None
    devices = []
    for device in spec.devices:
        attributes = device.attributes
        identity = attributes[ID_ATTRIBUTE].string if ID_ATTRIBUTE in attributes else device.name
        taints = tuple(f"{taint.key}={taint.value}" if taint.value else taint.key for taint in device.taints)
        tainted = min((taint.time_added.seconds for taint in device.taints), default=0) or None
        devices.append(SliceDevice(device.name, identity, taints, tainted))
    pool = spec.pool
    return Slice(spec.driver, spec.node_name, pool.name, pool.generation, pool.resource_slice_count, tuple(devices))


def claim(item: bytes) -> Claim:
    """Return a ResourceClaim."""
    message = objects_pb2.ResourceClaim.FromString(item)
    metadata, status = message.metadata, message.status
    classes: list[str] = []
    if not status.HasField("allocation"):
        for request in message.spec.devices.requests:
            exact = request.exactly
            classes += [exact.device_class_name] * max(exact.count, 1) if request.HasField("exactly") else []
            classes += [option.device_class_name for option in request.first_available[:1]]
    return Claim(
        metadata.namespace,
        metadata.name,
        float(metadata.creation_timestamp.seconds),
        tuple(classes),
        tuple((result.driver, result.pool, result.device) for result in status.allocation.devices.results),
        tuple((consumer.name, consumer.uid) for consumer in status.reserved_for if consumer.resource == "pods"),
    )


def device_class(item: bytes) -> DeviceClass:
    """Return a DeviceClass."""
    message = objects_pb2.DeviceClass.FromString(item)
    expressions = tuple(selector.cel.expression for selector in message.spec.selectors)
    return DeviceClass(message.metadata.name, expressions, message.spec.extended_resource_name)


def amount(text: str) -> int:
    """Return the quantity of a resource, such as 120, or 1k for 1000; 0 if it is none.

    A phone is a whole number. Other resources, such as kubernetes.io/batch-cpu, may be fractions, which are rounded up.
    """
    try:
        return int(text)
    except ValueError:
        digits = text.rstrip("numkKMGTPEi")
    try:
        return math.ceil(float(digits) * _SUFFIXES[text[len(digits) :]])  # digits may be 12e3
    except (ValueError, OverflowError, KeyError):
        return 0


def _extended(quantities: Mapping[str, objects_pb2.Quantity]) -> dict[str, int]:
    return {name: amount(quantity.string) for name, quantity in quantities.items() if "/" in name}


def _limits(spec: objects_pb2.PodSpec) -> dict[str, int]:
    """Return what the scheduler counts: the containers together, or an init container if it requests more."""
    together: dict[str, int] = {}
    for container in spec.containers:
        _add(together, container)
    if not spec.init_containers:
        return together
    largest: dict[str, int] = {}
    for container in spec.init_containers:
        if container.restart_policy == "Always":  # a sidecar
            _add(together, container)
        else:
            own: dict[str, int] = {}
            _add(own, container)
            largest.update({name: max(count, largest.get(name, 0)) for name, count in own.items()})
    return {name: max(together.get(name, 0), largest.get(name, 0)) for name in {**together, **largest}}


def _add(counts: dict[str, int], container: objects_pb2.Container) -> None:
    for name, quantity in container.resources.limits.items():
        if "/" in name:
            counts[name] = counts.get(name, 0) + amount(quantity.string)


def _claim_names(
    named: Iterable[objects_pb2.PodResourceClaim], made: Iterable[objects_pb2.PodResourceClaimStatus]
) -> tuple[str, ...]:
    """Return the names of a pod's claims: those that it names, and those that were made from templates."""
    names = [each.resource_claim_name for each in named if each.resource_claim_name]
    return (*names, *(each.resource_claim_name for each in made if each.resource_claim_name))


def _conditions(conditions: Iterable[objects_pb2.Condition]) -> dict[str, Condition]:
    return {
        each.type: Condition(each.status, each.reason, each.message, _time(each.last_transition_time))
        for each in conditions
    }


def _waiting(containers: Iterable[objects_pb2.ContainerStatus]) -> tuple[tuple[str, str], ...]:
    found = []
    for container in containers:
        state = container.state
        if state.HasField("waiting"):
            found.append((state.waiting.reason, state.waiting.message))
        elif state.HasField("terminated") and state.terminated.reason != "Completed":
            found.append((state.terminated.reason, f"exit code {state.terminated.exit_code}"))
    return tuple(found)


def _problem(status: objects_pb2.PodStatus, conditions: Mapping[str, Condition]) -> str:
    """Return why a pod of the plugin is not ready."""
    scheduled = conditions.get("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return _joined(scheduled.reason, scheduled.message)
    if status.reason or status.message:
        return _joined(status.reason, status.message)
    texts = [_joined(*each) for each in _waiting(status.container_statuses)]
    return texts[0] if texts else "the readiness probe fails"


def _joined(*texts: str) -> str:
    return ": ".join(text for text in texts if text)


def _target(spec: objects_pb2.PodSpec) -> str:
    """Return the node that a DaemonSet's pod waits for, which its affinity names."""
    for term in spec.affinity.node_affinity.required.terms:
        for field in term.fields:
            if field.key == "metadata.name" and len(field.values) == 1:
                return field.values[0]
    return ""


def _time(time: objects_pb2.Time) -> float | None:
    return float(time.seconds) if time.seconds else None
