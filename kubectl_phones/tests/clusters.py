"""Small clusters, as the API server describes them."""

import datetime
from typing import Any

from kubectl_phones import objects
from kubectl_phones.gather import Cluster
from kubectl_phones.objects import Object

NOW = 1_700_000_000.0
PHONE = "aosp.io/phone"
DRIVER = "phone.aosp.io"


def time(age: float) -> str:
    """Return the time ``age`` seconds ago, as the API server writes it."""
    return datetime.datetime.fromtimestamp(NOW - age, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str = "Ready", status: str = "True", *, age: float = 3600.0, **texts: str) -> Object:
    """Return a condition; ``texts`` are reason and message."""
    return {"type": kind, "status": status, "lastTransitionTime": time(age), **texts}


def node(
    name: str = "n1", capacity: int | None = 4, allocatable: int | None = None, resource: str = PHONE, **fields: Any
) -> Object:
    """Return a Node with phones of the device plugin; None for a node that has never had any."""
    own = {} if capacity is None else {resource: str(capacity)}
    free = own if allocatable is None else {resource: str(allocatable)}
    status = {"capacity": own, "allocatable": free, "conditions": [fields.get("ready", condition())]}
    metadata = {"name": name, "labels": fields.get("labels", {})}
    return {"metadata": metadata, "spec": {"taints": fields.get("taints", [])}, "status": status}


def pod(name: str = "p1", node: str = "n1", phones: int = 1, **fields: Any) -> Object:
    """Return a running pod with phones; the other fields are those of metadata, spec and status."""
    container = {"resources": {"limits": {PHONE: str(phones), "cpu": "2"} if phones else {}}}
    status = {"phase": "Running", "conditions": [condition()], "containerStatuses": [{"ready": True}]}
    return {
        "metadata": {"name": name, "namespace": "a", "creationTimestamp": time(600)} | fields.get("metadata", {}),
        "spec": {"nodeName": node, "containers": [container]} | fields.get("spec", {}),
        "status": status | fields.get("status", {}),
    }


def plugin_pod(node: str = "n1", *, ready: bool = True, **fields: Any) -> Object:
    """Return a pod of the plugin's DaemonSet."""
    metadata = {"namespace": "kube-system", "ownerReferences": [{"kind": "DaemonSet", "name": "aosp-device-plugin"}]}
    state = {"running": {"startedAt": time(3590)}}
    status = {
        "conditions": [condition(status=str(ready), age=60 if not ready else 3590)],
        "containerStatuses": [{"ready": ready, "state": state}],
    }
    name = fields.get("name", f"plugin-{node}")
    own = {"metadata": metadata | fields.get("metadata", {}), "status": status | fields.get("status", {})}
    return pod(name, node, 0, spec=fields.get("spec", {}), **own)


def daemon_set(selector: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return the plugin's DaemonSet."""
    return {"spec": {"template": {"spec": {"nodeSelector": selector or {}, **spec}}}}


def slice_of(*devices: str | Object, node: str = "n1", generation: int = 1) -> Object:
    """Return a ResourceSlice of a node."""
    pool = {"name": f"{node}/00000", "generation": generation}
    own = [each if isinstance(each, dict) else {"name": each} for each in devices]
    return {"spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": own}}


def claim(name: str, device: str, *pods: str, node: str = "n1") -> Object:
    """Return an allocated claim in the namespace of the pods."""
    result = {"driver": DRIVER, "pool": f"{node}/00000", "device": device}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": each} for each in pods],
    }
    return {"metadata": {"namespace": "a", "name": name}, "spec": {}, "status": status}


def event(reason: str, message: str, age: float, node: str = "n1") -> Object:
    """Return an Event of the plugin about its Node."""
    times = {"firstTimestamp": time(age + 100), "lastTimestamp": time(age)}
    return {"involvedObject": {"name": node}, "reason": reason, "message": message, **times}


def cluster(**fields: Any) -> Cluster:
    """Return a cluster of these objects; by default of one node, whose plugin is ready, and no pod."""
    given: dict[str, Any] = {
        "nodes": [node()],
        "pods": [],
        "plugin_pods": [plugin_pod()],
        "daemon_sets": [daemon_set()],
    }
    decode = {
        "nodes": objects.node,
        "pods": objects.phone_pod,
        "plugin_pods": objects.plugin_pod,
        "claims": objects.claim,
    }
    read: dict[str, Any] = {}
    for name, items in (given | fields).items():
        found = None if items is None else map(decode.get(name, dict), items)
        read[name] = None if found is None else tuple(each for each in found if each is not None)
    return Cluster(time=NOW, **read)
