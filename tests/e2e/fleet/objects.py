"""The objects of a simulated fleet."""

from __future__ import annotations

import copy
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml

from aosp_plugin.framework.dra.driver_names import block_of, pool_name, slice_name

if TYPE_CHECKING:
    from collections.abc import Iterator

RESOURCE: Final = "aosp.io/phone"
DRIVER: Final = "phone.aosp.io"
NAME: Final = "aosp-device-plugin"
SYSTEM: Final = "kube-system"
STARTED: Final = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=7)).strftime("%Y-%m-%dT%H:%M:%SZ")
_IMAGES: Final = 40
_DIGEST: Final = "sha256:" + 8 * "0123abcd"
_NODE, _PLUGIN, _PHONE = yaml.safe_load_all(Path(__file__).with_name("objects.yaml").read_text())


class Fleet(NamedTuple):
    """The size of a fleet."""

    nodes: int
    phones: int
    """Phones of each node."""
    pods: int
    """Phones of each node that have a pod."""
    dra: bool
    problems: bool = False
    """Whether the plugin of every 50th node has ended, and every 40th has an unhealthy phone."""
    tenants: int = 20

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of the pods."""
        return [f"tenant-{number}" for number in range(self.tenants)]

    def lost(self, number: int) -> bool:
        """Return whether a node has no plugin."""
        return self.problems and number % 50 == 7

    def unhealthy(self, number: int) -> bool:
        """Return whether a node has an unhealthy phone."""
        return self.problems and number % 40 == 1


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"phone-host-{number:03}.rack-{number // 40}.example.com"


def node(fleet: Fleet, number: int) -> dict[str, Any]:
    """Return a Node object with its status."""
    made: dict[str, Any] = copy.deepcopy(_NODE)
    made["metadata"]["name"] = made["metadata"]["labels"]["kubernetes.io/hostname"] = node_name(number)
    made["metadata"]["labels"]["topology.kubernetes.io/zone"] = f"zone-{number % 3}"
    made["spec"]["podCIDR"] = f"10.{64 + number // 256}.{number % 256}.0/24"
    status = made["status"]
    status["conditions"] = [entry | {"lastHeartbeatTime": STARTED} for entry in status["conditions"]]
    names = [f"registry.example.com/team/image-{n}" for n in range(_IMAGES)]
    status["images"] = [{"names": [f"{name}@{_DIGEST}", f"{name}:v1"], "sizeBytes": 123456789} for name in names]
    status["allocatable"] = status["capacity"]
    if not fleet.dra:
        healthy = 0 if fleet.lost(number) else fleet.phones - fleet.unhealthy(number)
        status["allocatable"] = status["capacity"] | {RESOURCE: str(healthy)}
        status["capacity"] = status["capacity"] | {RESOURCE: str(fleet.phones)}
    return made


def daemon_set() -> dict[str, Any]:
    """Return the plugin's DaemonSet."""
    labels = {"app.kubernetes.io/name": NAME}
    pod = {"nodeSelector": {"aosp.io/binder": "true"}, "containers": _PLUGIN["spec"]["containers"]}
    return {
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def plugin_pod(number: int) -> dict[str, Any]:
    """Return a pod of the plugin's DaemonSet, with its status."""
    made: dict[str, Any] = copy.deepcopy(_PLUGIN)
    made["metadata"]["name"] = f"{NAME}-{number:05}"
    made["spec"]["nodeName"] = node_name(number)
    return made | {"status": _status(NAME)}


def phone(name: str, *, dra: bool, template: str = "phone") -> dict[str, Any]:
    """Return a pod with a phone, that no node has yet; without one if there is no template for its claim."""
    made: dict[str, Any] = copy.deepcopy(_PHONE)
    made["metadata"]["name"] = name
    resources = made["spec"]["containers"][0]["resources"]
    if not dra:
        resources["limits"][RESOURCE] = "1"
    elif template:
        resources["claims"] = [{"name": "phone"}]
        made["spec"]["resourceClaims"] = [{"name": "phone", "resourceClaimTemplateName": template}]
    return made


def phone_pods(fleet: Fleet, number: int) -> Iterator[dict[str, Any]]:
    """Yield the pods of the phones on a node, with their namespace and status."""
    for index in range(fleet.pods):
        serial = number * fleet.phones + index
        made = phone(f"redroid-{serial:05}", dra=fleet.dra)
        made["metadata"]["namespace"] = fleet.namespaces[serial % fleet.tenants]
        made["spec"]["nodeName"] = node_name(number)
        made["status"] = _status("android")
        if fleet.dra:
            claimed = f"{made['metadata']['name']}-phone"
            made["status"]["resourceClaimStatuses"] = [{"name": "phone", "resourceClaimName": claimed}]
        yield made


def claim(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the claim of a pod on the first node, which has its UID, with its status."""
    metadata = pod["metadata"]
    reference = {"name": metadata["name"], "uid": metadata["uid"]}
    owner = reference | {"apiVersion": "v1", "kind": "Pod", "controller": True, "blockOwnerDeletion": True}
    request = {"name": "phone", "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name(0)]}]}]
    pool = pool_name(node_name(0), block_of("phone0"))
    result = {"request": "phone", "driver": DRIVER, "pool": pool, "device": "phone0"}
    return {
        "metadata": {
            "name": f"{metadata['name']}-phone",
            "annotations": {"resource.kubernetes.io/pod-claim-name": "phone"},
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": [request]}},
        "status": {
            "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}},
            "reservedFor": [{"resource": "pods"} | reference],
        },
    }


def slices(fleet: Fleet, number: int, uid: str) -> Iterator[dict[str, Any]]:
    """Yield the ResourceSlices of a node as the plugin's driver publishes them."""
    name = node_name(number)
    blocks: dict[str, list[dict[str, Any]]] = {}
    for index in range(fleet.phones):
        attributes: dict[str, Any] = {"id": {"string": f"phone{index}"}, "binderfs": {"bool": True}}
        attributes |= {"pluginVersion": {"version": "0.1.0"}, "kernel": {"version": "6.12.0"}}
        attributes |= {"resource.kubernetes.io/numaNode": {"int": index % 2}}
        device: dict[str, Any] = {"name": f"phone{index}", "attributes": attributes}
        if fleet.unhealthy(number) and index == 0:
            device["taints"] = [{"key": f"{DRIVER}/unhealthy", "value": "foreign-mount", "effect": "NoSchedule"}]
        blocks.setdefault(block_of(f"phone{index}"), []).append(device)
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}
    for block, devices in blocks.items():
        pool = {"name": pool_name(name, block), "generation": 1, "resourceSliceCount": 1}
        yield {
            "metadata": {"name": slice_name(DRIVER, name, block), "ownerReferences": [owner]},
            "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices},
        }


def _status(container: str) -> dict[str, Any]:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    image = f"registry.example.com/android/{container}"
    running = {
        "name": container,
        "image": f"{image}:14.0.0-latest",
        "imageID": f"{image}@{_DIGEST}",
        "containerID": f"containerd://{_DIGEST[7:]}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": STARTED}},
    }
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": STARTED} for kind in kinds],
        "hostIP": "192.0.2.1",
        "podIP": "10.64.0.2",
        "podIPs": [{"ip": "10.64.0.2"}],
        "startTime": STARTED,
        "containerStatuses": [running],
    }
