"""The objects of a simulated fleet, with the fields and the size that they have in a cluster."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aosp_plugin.framework.dra.driver_names import block_of, pool_name, slice_name

if TYPE_CHECKING:
    from collections.abc import Iterator

RESOURCE: Final = "aosp.io/phone"
DRIVER: Final = "phone.aosp.io"
PORT: Final = 9478
NAME: Final = "aosp-device-plugin"
SYSTEM: Final = "kube-system"
STARTED: Final = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=7)).strftime("%Y-%m-%dT%H:%M:%SZ")
_DIGEST: Final = "sha256:" + 8 * "0123abcd"


class Fleet(NamedTuple):
    """The size of a fleet."""

    nodes: int
    phones: int
    """Phones of each node; all but one have a pod."""
    dra: bool
    tenants: int = 20

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of the pods."""
        return [f"tenant-{number}" for number in range(self.tenants)]


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"phone-host-{number:03}.rack-{number // 40}.example.com"


def plugin_address(number: int) -> str:
    """Return the address of a node's plugin."""
    return f"10.245.{number // 250}.{number % 250 + 1}"


def number_of(address: str) -> int:
    """Return the number of the node whose plugin has an address."""
    _, _, high, low = map(int, address.split("."))
    return high * 250 + low - 1


def node(fleet: Fleet, number: int) -> dict[str, Any]:
    """Return a Node object with its status."""
    name = node_name(number)
    # The plugin of every 50th node has ended, and every 40th has an unhealthy phone.
    healthy = 0 if lost(number) else fleet.phones - unhealthy(number)
    amounts = {"cpu": "128", "memory": "527000000Ki", "ephemeral-storage": "1800000000Ki", "pods": "250"}
    counted = {} if fleet.dra else {RESOURCE: str(fleet.phones)}
    allocatable = {} if fleet.dra else {RESOURCE: str(healthy)}
    kinds = {
        "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
    }
    conditions = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": STARTED,
            "lastTransitionTime": STARTED,
        }
        for kind, (status, reason, message) in kinds.items()
    ]
    images = [
        {"names": [f"registry.example.com/team/image-{n}@{_DIGEST}", f"registry.example.com/team/image-{n}:v{n}"]}
        for n in range(40)
    ]
    return {
        "metadata": {
            "name": name,
            "labels": {
                "aosp.io/binder": "true",
                "kubernetes.io/arch": "arm64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "topology.kubernetes.io/zone": f"zone-{number % 3}",
            },
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"podCIDR": f"10.{64 + number // 256}.{number % 256}.0/24"},
        "status": {
            "capacity": amounts | counted,
            "allocatable": amounts | allocatable,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": f"192.0.2.{number % 250 + 1}"}],
            "images": [image | {"sizeBytes": 123456789} for image in images],
            "nodeInfo": {
                "architecture": "arm64",
                "bootID": "7c1e5a7e-7d54-4bd9-a1a4-9d8f0a8ba6b1",
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.12.0-generic",
                "kubeProxyVersion": "v1.34.1",
                "kubeletVersion": "v1.34.1",
                "machineID": "9a0fbd4f4c0b4b0f8c3c1c5c6a9b8f70",
                "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 13 (trixie)",
                "systemUUID": "9a0fbd4f-4c0b-4b0f-8c3c-1c5c6a9b8f70",
            },
        },
    }


def lost(number: int) -> bool:
    """Return whether a node has no plugin."""
    return number % 50 == 7


def unhealthy(number: int) -> bool:
    """Return whether a node has an unhealthy phone."""
    return number % 40 == 1


def daemon_set() -> dict[str, Any]:
    """Return the plugin's DaemonSet."""
    labels = {"app.kubernetes.io/name": NAME}
    container = {"name": NAME, "image": "registry.example.com/aosp-device-plugin:0.1.0"}
    pod = {"nodeSelector": {"aosp.io/binder": "true"}, "containers": [container]}
    return {
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def plugin_pod(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a pod of the plugin's DaemonSet, and its status."""
    labels = {"app.kubernetes.io/name": NAME, "controller-revision-hash": "77c4bb6df9", "pod-template-generation": "1"}
    body = _pod(f"{NAME}-{number:05}", labels, node_name(number), NAME, {"cpu": "200m", "memory": "256Mi"})
    body["metadata"]["ownerReferences"][0] |= {"kind": "DaemonSet", "name": NAME}
    body["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": PORT, "protocol": "TCP"}]
    return body, _status(plugin_address(number), NAME)


def phone_pods(fleet: Fleet, number: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield namespace, pod and status of each phone on a node."""
    for index in range(fleet.phones - 1):
        serial = number * fleet.phones + index
        name = f"redroid-{serial:05}"
        limits = {"cpu": "2", "memory": "4Gi"} | ({} if fleet.dra else {RESOURCE: "1"})
        labels = {"app.kubernetes.io/name": "redroid", "app.kubernetes.io/instance": f"tenant-{serial % fleet.tenants}"}
        body = _pod(name, labels, node_name(number), "android", limits)
        status = _status(f"10.{64 + number // 256}.{number % 256}.{index + 2}", "android")
        if fleet.dra:
            body["spec"]["resourceClaims"] = [{"name": "phone", "resourceClaimTemplateName": "phone"}]
            body["spec"]["containers"][0]["resources"]["claims"] = [{"name": "phone"}]
            status["resourceClaimStatuses"] = [{"name": "phone", "resourceClaimName": f"{name}-phone"}]
        yield fleet.namespaces[serial % fleet.tenants], body, status


def claim(number: int, index: int, pod: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the claim of a pod, which has its UID, and the claim's status."""
    metadata, device = pod["metadata"], f"phone{index}"
    reference = {"name": metadata["name"], "uid": metadata["uid"]}
    owner = reference | {"apiVersion": "v1", "kind": "Pod", "controller": True, "blockOwnerDeletion": True}
    request = {"name": "phone", "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name(number)]}]}]
    result = {
        "request": "phone",
        "driver": DRIVER,
        "pool": pool_name(node_name(number), block_of(device)),
        "device": device,
    }
    status = {
        "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}},
        "reservedFor": [{"resource": "pods"} | reference],
    }
    body = {
        "metadata": {
            "name": f"{metadata['name']}-phone",
            "annotations": {"resource.kubernetes.io/pod-claim-name": "phone"},
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": [request]}},
    }
    return body, status


def slices(fleet: Fleet, number: int, uid: str) -> Iterator[dict[str, Any]]:
    """Yield the ResourceSlices of a node as the plugin's driver publishes them."""
    name = node_name(number)
    blocks: dict[str, list[dict[str, Any]]] = {}
    for index in range(fleet.phones):
        device: dict[str, Any] = {
            "name": f"phone{index}",
            "attributes": {
                "id": {"string": f"phone{index}"},
                "binderfs": {"bool": True},
                "pluginVersion": {"version": "0.1.0"},
                "kernel": {"version": "6.12.0"},
                "resource.kubernetes.io/numaNode": {"int": index % 2},
            },
        }
        if unhealthy(number) and index == 0:
            device["taints"] = [{"key": f"{DRIVER}/unhealthy", "value": "foreign-mount", "effect": "NoSchedule"}]
        blocks.setdefault(block_of(f"phone{index}"), []).append(device)
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}
    for block, devices in blocks.items():
        yield {
            "metadata": {"name": slice_name(DRIVER, name, block), "ownerReferences": [owner]},
            "spec": {
                "driver": DRIVER,
                "nodeName": name,
                "pool": {"name": pool_name(name, block), "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }


def _pod(name: str, labels: dict[str, str], node: str, container: str, limits: dict[str, str]) -> dict[str, Any]:
    environment = {"ANDROID_SERIAL": name, "TZ": "UTC", "LANG": "C.UTF-8"}
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
    volumes: list[dict[str, Any]] = [
        {"name": "data", "emptyDir": {"sizeLimit": "16Gi"}},
        {"name": "token", "projected": {"defaultMode": 420, "sources": [token]}},
    ]
    tolerations = [
        {"key": f"node.kubernetes.io/{reason}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for reason in ("not-ready", "unreachable")
    ]
    return {
        "metadata": {
            "name": name,
            "labels": {**labels, "apps.kubernetes.io/pod-index": "0", "pod-template-hash": "5d4f8c7b9d"},
            "annotations": {"checksum/config": _DIGEST[7:]},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "StatefulSet",
                    "name": "redroid",
                    "uid": "2d7a6c3f-4d3e-4a57-9d0c-6a3f0a9f2b11",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "tolerations": tolerations,
            "nodeSelector": {"aosp.io/binder": "true"},
            "containers": [
                {
                    "name": container,
                    "image": f"registry.example.com/android/{container}:14.0.0-latest",
                    "args": ["androidboot.use_memfd=1", "androidboot.redroid_gpu_mode=guest"],
                    "env": [{"name": key, "value": value} for key, value in environment.items()],
                    "resources": {"limits": limits},
                    "readinessProbe": {"tcpSocket": {"port": 5555}, "periodSeconds": 10},
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data"},
                        {"name": "token", "mountPath": "/var/run/secrets/tokens", "readOnly": True},
                    ],
                }
            ],
            "volumes": volumes,
        },
    }


def _status(address: str, container: str) -> dict[str, Any]:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": STARTED} for kind in kinds],
        "hostIP": "192.0.2.1",
        "hostIPs": [{"ip": "192.0.2.1"}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": STARTED,
        "containerStatuses": [
            {
                "name": container,
                "image": f"registry.example.com/android/{container}:14.0.0-latest",
                "imageID": f"registry.example.com/android/{container}@{_DIGEST}",
                "containerID": f"containerd://{_DIGEST[7:]}",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": STARTED}},
            }
        ],
    }
