"""The objects of a simulated fleet, and the pods that the scheduler places in it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from aosp_plugin.framework.dra.driver_names import pool_name, slice_name
from tests.e2e.fleet import objects as fleet_objects
from tests.e2e.fleet.objects import DRIVER, RESOURCE, Fleet, node_name

if TYPE_CHECKING:
    from collections.abc import Iterator

CLASS: Final = DRIVER
TEMPLATE: Final = "phone"
NAMESPACE: Final = "default"
RESOURCE_GROUP: Final = "resource.k8s.io/v1"
_CAPACITY: Final = "phones"
_SHARED: Final = "host"
"""The one device of a node, of which each claim consumes a share."""


class Variant(enum.StrEnum):
    """How pods get phones."""

    NONE = "none"
    """They request nothing: what the control plane needs for any pod."""
    DEVICE_PLUGIN = "device-plugin"
    """The nodes have an amount of allocatable phones."""
    CLAIM = "claim"
    """Each phone is a device in a ResourceSlice; the controller manager creates a claim for each pod."""
    EXTENDED = "extended-resource"
    """The same devices, requested by the resource's name; the scheduler creates the claim."""
    CAPACITY = "capacity"
    """Each node has one device, of whose capacity each claim consumes one phone."""

    @property
    def dra(self) -> bool:
        """Whether the scheduler allocates devices."""
        return self not in {Variant.NONE, Variant.DEVICE_PLUGIN}


def node(fleet: Fleet, number: int) -> dict[str, Any]:
    """Return a Node with its status; all phones of it are allocatable."""
    body = fleet_objects.node(fleet, number)
    if not fleet.dra:
        body["status"]["allocatable"][RESOURCE] = str(fleet.phones)
    return body


def slices(fleet: Fleet, variant: Variant, number: int, uid: str) -> Iterator[dict[str, Any]]:
    """Yield the ResourceSlices of a node, whose UID is ``uid``: none without DRA."""
    if variant is Variant.CAPACITY:
        yield _shared_slice(fleet, number, uid)
    elif variant.dra:
        yield from fleet_objects.slices(fleet, number, uid)


def device_class(variant: Variant) -> dict[str, Any]:
    """Return the DeviceClass, with the name of the resource if pods request that."""
    extended = {"extendedResourceName": RESOURCE} if variant is Variant.EXTENDED else {}
    expression = f"device.driver == '{DRIVER}'"
    return {"metadata": {"name": CLASS}, "spec": {"selectors": [{"cel": {"expression": expression}}], **extended}}


def claim_template(variant: Variant) -> dict[str, Any]:
    """Return the template of the claims for one phone."""
    exactly: dict[str, Any] = {"deviceClassName": CLASS}
    if variant is Variant.CAPACITY:
        exactly["capacity"] = {"requests": {_CAPACITY: "1"}}
    requests = [{"name": "phone", "exactly": exactly}]
    return {"metadata": {"name": TEMPLATE}, "spec": {"spec": {"devices": {"requests": requests}}}}


def pod(variant: Variant, name: str) -> dict[str, Any]:
    """Return a pod with one phone; no pod with the variant NONE."""
    resources: dict[str, Any] = {
        "requests": {"cpu": "250m", "memory": "2Gi"},
        "limits": {"cpu": "2", "memory": "4Gi"},
    }
    spec: dict[str, Any] = {}
    if variant in {Variant.DEVICE_PLUGIN, Variant.EXTENDED}:
        resources["limits"][RESOURCE] = "1"
    elif variant.dra:
        resources["claims"] = [{"name": "phone"}]
        spec["resourceClaims"] = [{"name": "phone", "resourceClaimTemplateName": TEMPLATE}]
    container = {
        "name": "android",
        "image": "registry.example.com/android/android:14.0.0-latest",
        "args": ["androidboot.use_memfd=1", "androidboot.redroid_gpu_mode=guest"],
        "env": [{"name": "ANDROID_SERIAL", "value": name}, {"name": "TZ", "value": "UTC"}],
        "readinessProbe": {"tcpSocket": {"port": 5555}, "periodSeconds": 10},
        "resources": resources,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "redroid"}},
        "spec": spec
        | {
            "automountServiceAccountToken": False,
            "nodeSelector": {"aosp.io/binder": "true"},
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "16Gi"}}],
        },
    }


def _shared_slice(fleet: Fleet, number: int, uid: str) -> dict[str, Any]:
    name, block = node_name(number), "00000"
    capacity = {"value": str(fleet.phones), "requestPolicy": {"default": "1"}}
    device = {
        "name": _SHARED,
        "allowMultipleAllocations": True,
        "attributes": {"id": {"string": _SHARED}, "pluginVersion": {"version": "0.1.0"}},
        "capacity": {_CAPACITY: capacity},
    }
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}
    return {
        "metadata": {"name": slice_name(DRIVER, name, block), "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": pool_name(name, block), "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }
