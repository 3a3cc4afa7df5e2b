"""Small clusters for tests of ``kubectl phones``."""

from __future__ import annotations

from typing import Any

from aosp_plugin.cli.fleet.cluster import (
    Claim,
    Cluster,
    Condition,
    DaemonSet,
    Node,
    PluginAnswer,
    PluginDevice,
    PluginPod,
    PluginResource,
    Pod,
    Slice,
    SliceDevice,
)

NOW = 1_700_000_000.0
PHONE = "aosp.io/phone"
DRIVER = "phone.aosp.io"
READY = Condition("True", "KubeletReady", "", NOW - 3600)


def node(
    name: str = "n1", capacity: int | None = 4, allocatable: int | None = None, resource: str = PHONE, **fields: Any
) -> Node:
    """Return a Node with phones of the device plugin; None for a node that has never had any."""
    amounts = {} if capacity is None else {resource: capacity}
    allocated = {} if capacity is None else {resource: capacity if allocatable is None else allocatable}
    given: dict[str, Any] = {"labels": {}, "capacity": amounts, "allocatable": allocated, "ready": READY}
    return Node(name, **(given | fields))


def pod(name: str = "p1", node: str = "n1", phones: int = 1, **fields: Any) -> Pod:
    """Return a running pod with phones."""
    given: dict[str, Any] = {
        "namespace": "a",
        "uid": f"uid-{name}",
        "created": NOW - 600,
        "deleted": None,
        "limits": {PHONE: phones} if phones else {},
        "claims": (),
        "phase": "Running",
        "reason": "",
        "message": "",
        "ready": True,
    }
    return Pod(name=name, node=node, **(given | fields))


def plugin_pod(node: str = "n1", **fields: Any) -> PluginPod:
    """Return a pod of the plugin that is ready."""
    given: dict[str, Any] = {
        "namespace": "kube-system",
        "name": f"plugin-{node}",
        "created": NOW - 3600,
        "deleted": None,
        "revision": "r1",
        "address": "10.0.0.1",
        "port": 9478,
        "ready": True,
        "since": NOW - 3590,
        "problem": "",
    }
    return PluginPod(node=node, **(given | fields))


def resource(healthy: int = 4, name: str = PHONE, **fields: Any) -> PluginResource:
    """Return what a plugin reports about a resource."""
    given: dict[str, Any] = {"unhealthy": {}, "registered": True}
    return PluginResource(name, healthy, **(given | fields))


def device(name: str, state: str = "free", **fields: Any) -> PluginDevice:
    """Return a device as a plugin reports it."""
    given: dict[str, Any] = {"reason": "", "detail": "", "pods": (), "since": None}
    return PluginDevice(name, state, **(given | fields))


def answers(*resources: PluginResource, node: str = "n1", **fields: Any) -> dict[tuple[str, str], PluginAnswer]:
    """Return the answers of one plugin."""
    given: dict[str, Any] = {"source": "status", "version": "1.2.3"}
    return {("kube-system", f"plugin-{node}"): PluginAnswer(resources=resources, **(given | fields))}


def slice_of(*devices: str | SliceDevice, node: str = "n1", **fields: Any) -> Slice:
    """Return a ResourceSlice of a node."""
    own = tuple(each if isinstance(each, SliceDevice) else SliceDevice(each, each, (), None) for each in devices)
    given: dict[str, Any] = {"driver": DRIVER, "pool": f"{node}/00000", "generation": 1, "wanted": 1}
    return Slice(node=node, devices=own, **(given | fields))


def claim(name: str, device: str, *pods: str, node: str = "n1") -> Claim:
    """Return an allocated claim in the namespace of the pods."""
    consumers = tuple((each, f"uid-{each}") for each in pods)
    return Claim("a", name, NOW - 500, (), ((DRIVER, f"{node}/00000", device),), consumers)


def cluster(**fields: Any) -> Cluster:
    """Return a cluster with one node, whose plugin is ready, and no pod."""
    given: dict[str, Any] = {
        "time": NOW,
        "nodes": (node(),),
        "pods": (),
        "plugin_pods": (plugin_pod(),),
        "daemon_sets": (DaemonSet("kube-system", "aosp-device-plugin", {}, affinity=False),),
    }
    return Cluster(**(given | fields))
