"""Decodes what is needed of the API server's objects. Times are seconds since the epoch. Everything here is pure."""

import collections
import datetime
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

Object = dict[str, Any]
"""An object of the API server as JSON."""

_QUANTITY: Final = re.compile(r"([0-9]+)(?:[eE]([0-9])|([kMG]|[KMG]i))?")
_FACTORS: Final = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, None: 1}


class Condition(NamedTuple):
    """A condition of a Node or a pod."""

    status: str = "Unknown"
    """True, False or Unknown."""
    reason: str = ""
    message: str = ""
    since: float | None = None


class Node(NamedTuple):
    """A Node."""

    name: str
    labels: Mapping[str, str]
    capacity: Mapping[str, int]
    """Amounts of extended resources."""
    allocatable: Mapping[str, int]
    ready: Condition
    taints: tuple[str, ...]
    """Keys of its taints."""


class Pod(NamedTuple):
    """A pod that may have phones, or of the plugin."""

    namespace: str
    name: str
    node: str
    """Empty until it is scheduled."""
    created: float
    deleted: float | None
    """When it should end; None if it has not been deleted."""
    started: float
    """When the latest of its containers started; 0 if none runs."""
    limits: Mapping[str, int]
    """Extended resources of its containers."""
    claims: tuple[str, ...]
    """Names of its ResourceClaims."""
    phase: str
    problem: str
    """Reason and message of its status."""
    ready: Condition
    scheduled: Condition
    waiting: tuple[tuple[str, str], ...]
    """Reason and message of each container that waits or has failed."""
    devices: tuple[tuple[str, str, str], ...]
    """Resource, ID and health of each device, if the kubelet reports them (feature gate ResourceHealthStatus)."""


class Claim(NamedTuple):
    """A ResourceClaim."""

    namespace: str
    name: str
    classes: Mapping[str, int]
    """Number of requested devices by device class, which its user chooses; empty if it is allocated."""
    devices: tuple[tuple[str, str, str], ...]
    """Driver, pool and name of each allocated device."""
    pods: tuple[str, ...]
    """Names of the pods that it is reserved for."""


def node(item: Object) -> Node:
    """Return a Node."""
    metadata, status = item["metadata"], item["status"]
    capacity, allocatable = (_extended(status.get(name, {})) for name in ("capacity", "allocatable"))
    taints = tuple(taint["key"] for taint in item["spec"].get("taints", ()))
    return Node(
        metadata["name"], metadata.get("labels", {}), capacity, allocatable, _condition(status, "Ready"), taints
    )


def phone_pod(item: Object) -> Pod | None:
    """Return a pod that requests an extended resource or a claim; None for others, and for one that has succeeded."""
    found = _pod(item)
    return found if (found.limits or item["spec"].get("resourceClaims")) and found.phase != "Succeeded" else None


def plugin_pod(item: Object) -> Pod | None:
    """Return a pod of the plugin's DaemonSet; None for a pod of another owner, such as that of ``helm test``.

    A pod that has not been scheduled has the node that its affinity names.
    """
    if not any(owner["kind"] == "DaemonSet" for owner in item["metadata"].get("ownerReferences", ())):
        return None
    found = _pod(item)
    affinity = item["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", ())
    fields = [field for term in terms for field in term.get("matchFields", ()) if field["key"] == "metadata.name"]
    return found if found.node or not fields else found._replace(node=fields[0]["values"][0])


def claim(item: Object) -> Claim:
    """Return a ResourceClaim."""
    metadata, status = item["metadata"], item.get("status", {})
    classes = collections.Counter[str]()
    if "allocation" not in status:
        for request in item["spec"].get("devices", {}).get("requests", ()):
            wanted = request.get("exactly") or request["firstAvailable"][0]
            classes[wanted["deviceClassName"]] += wanted.get("count", 1)
    results = status.get("allocation", {}).get("devices", {}).get("results", ())
    devices = tuple((result["driver"], result["pool"], result["device"]) for result in results)
    pods = tuple(consumer["name"] for consumer in status.get("reservedFor", ()) if consumer["resource"] == "pods")
    return Claim(metadata["namespace"], metadata["name"], classes, devices, pods)


def amount(text: str) -> int:
    """Return the quantity of a resource that is counted, such as 120, or 1k for 1000; 0 for any other text."""
    match = _QUANTITY.fullmatch(text)
    return int(match[1]) * 10 ** int(match[2] or 0) * _FACTORS[match[3]] if match else 0


def seconds(text: str | None) -> float | None:
    """Return a time of the API server in seconds since the epoch."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None


def joined(*texts: str | None) -> str:
    """Return the texts that are not empty, such as a reason and a message, as one."""
    return ": ".join(filter(None, texts))


def _pod(item: Object) -> Pod:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status", {})
    containers = status.get("containerStatuses", ())
    claims = (*spec.get("resourceClaims", ()), *status.get("resourceClaimStatuses", ()))
    states = [container.get("state", {}) for container in containers]
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        node=spec.get("nodeName", ""),
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        deleted=seconds(metadata.get("deletionTimestamp")),
        started=max((seconds(state.get("running", {}).get("startedAt")) or 0.0 for state in states), default=0.0),
        limits=_limits(spec),
        claims=tuple(each["resourceClaimName"] for each in claims if each.get("resourceClaimName")),
        phase=status.get("phase", ""),
        problem=joined(status.get("reason"), status.get("message")),
        ready=_condition(status, "Ready"),
        scheduled=_condition(status, "PodScheduled"),
        waiting=tuple(found for state in states if (found := _waiting(state))),
        devices=tuple(
            (entry["name"], device["resourceID"], device.get("health", ""))
            for container in containers
            for entry in container.get("allocatedResourcesStatus", ())
            for device in entry.get("resources", ())
        ),
    )


def _waiting(state: Object) -> tuple[str, str] | None:
    """Return what a container waits for, or how it has failed."""
    waiting, ended = state.get("waiting"), state.get("terminated", {"reason": "Completed"})
    if waiting is not None:
        return waiting.get("reason", ""), waiting.get("message", "")
    return None if ended.get("reason") == "Completed" else (ended.get("reason", ""), f"exit code {ended['exitCode']}")


def _limits(spec: Object) -> dict[str, int]:
    """Return what the scheduler counts: the containers together, or an init container if it requests more."""
    initial = spec.get("initContainers", ())
    sidecars = [container for container in initial if container.get("restartPolicy") == "Always"]
    together, largest = collections.Counter[str](), collections.Counter[str]()
    for container in (*spec["containers"], *sidecars):
        together.update(_container_limits(container))
    for container in initial:
        largest |= collections.Counter(_container_limits(container))
    return together | largest


def _container_limits(container: Object) -> dict[str, int]:
    return _extended(container.get("resources", {}).get("limits", {}))


def _extended(quantities: Mapping[str, str]) -> dict[str, int]:
    return {name: amount(quantity) for name, quantity in quantities.items() if "/" in name}


def _condition(status: Object, kind: str) -> Condition:
    for each in status.get("conditions", ()):
        if each["type"] == kind:
            since = seconds(each.get("lastTransitionTime"))
            return Condition(each["status"], each.get("reason", ""), each.get("message", ""), since)
    return Condition()
